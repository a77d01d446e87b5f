"""``vllm bench serve``, unmodified, again and again in one process: importing it takes longer than most runs do.

Reads one JSON list of arguments per line, runs the command with them, and answers with one line: ok, or the error.
"""

import json
import sys
import traceback
from contextlib import redirect_stdout

from benchmarks.overhead.vllm_command import rename


def main() -> None:
    """Until the input ends."""
    answers = sys.stdout
    with redirect_stdout(sys.stderr):
        rename()
        from vllm.benchmarks.serve import add_cli_args  # noqa: PLC0415 - only after its package has its name
        from vllm.benchmarks.serve import main as bench  # noqa: PLC0415
        from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            try:
                parser = FlexibleArgumentParser()
                add_cli_args(parser)
                bench(parser.parse_args(json.loads(line)))
                print("ok", file=answers, flush=True)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - outermost: the caller decides
                traceback.print_exc()
                print(f"failed: {error!r}"[:500].replace("\n", " "), file=answers, flush=True)


if __name__ == "__main__":
    main()
