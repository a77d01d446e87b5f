"""A request log whose last column is text of several lines can be read however long it is."""

from pathlib import Path

import pytest

from ebbtide_simulator.traffic.traces import BadTrace, read_serving


@pytest.mark.xfail(
    strict=True, raises=BadTrace, reason="a quoted field with line breaks is refused above 1 MiB, pyarrow's block"
)
@pytest.mark.parametrize("text", ["one\ntwo, with a comma\n\nfour, the last", "one\r\ntwo, with a comma\r\n\r\nfour"])
def test_a_column_of_text_may_have_line_breaks(text: str, tmp_path: Path) -> None:
    count, path = 60_000, tmp_path / "trace.csv"
    rows = "".join(f'{number},100,20,"{text}"\n' for number in range(count))
    path.write_text(f"t_s,in_tok,out_tok,prompt\n{rows}", newline="")
    assert len(read_serving(path).at_s) == count
