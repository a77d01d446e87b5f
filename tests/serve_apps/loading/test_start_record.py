"""What a rank tells of its start."""

from ebbtide.storage.transport.transfer_report import Mode, TransferReport
from ebbtide_serve.loading.start_record import StartRecord


def test_a_record_adds_up_the_models_of_one_engine() -> None:
    record = StartRecord(rank=1, asked="ebbtide_flat")
    record.reached("weights")
    first = record.moments_s["weights"]
    record.reached("weights")
    record.add("ebbtide_flat", TransferReport({Mode.DIRECT: 10}, 1.0), 1.0)
    record.add("ebbtide_flat", TransferReport({Mode.DIRECT: 5}, 1.0, why_not_better="no GPU"), 0.5)
    told = record.to_dict()
    assert (told["used"], told["bytes_by_mode"], told["seconds"]) == ("ebbtide_flat", {"posix direct": 15}, 1.5)
    assert told["moments_s"] == {"weights": first}
    assert record.in_words() == "rank 1: loaded by ebbtide_flat in 1.50 s, 15 bytes, posix direct (no GPU)"
    record.add("vllm", None, 1.0)
    assert record.to_dict()["used"] == "ebbtide_flat, vllm"
    assert record.to_dict()["bytes_by_mode"] == {"posix direct": 15}


def test_a_load_by_the_engines_own_loader_says_so() -> None:
    record = StartRecord()
    record.add("vllm", None, 2.0)
    assert record.in_words() == "rank 0: loaded by vllm in 2.00 s"
    assert record.to_dict()["bytes_by_mode"] == {}
