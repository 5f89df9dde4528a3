"""`python -m gpuspool.trainer`: exit codes 0 finished, 75 stopped with a checkpoint, 2 bad input, 1 anything else."""

from __future__ import annotations

# The handlers come before every other import: a stop that arrives while torch is imported, which takes seconds,
# must be caught, and a spool signals only processes that catch the signal.
from . import stopping

stopping.install()

import os  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402

from .arguments import BadInput, parse  # noqa: E402
from .checkpointing import CheckpointError  # noqa: E402
from .train import run  # noqa: E402


def main() -> None:
    """Run the program and leave with its exit code."""
    try:
        code = run(parse(sys.argv[1:]))
    except BadInput as error:
        print(f"gpuspool.trainer: {error}", file=sys.stderr)
        code = 2
    except CheckpointError as error:
        print(f"gpuspool.trainer: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("gpuspool.trainer: interrupted", file=sys.stderr)
        code = 130
    except SystemExit as error:  # argparse, for --help
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if "torch" in sys.modules:
        # gloo's threads sometimes abort an ordinary exit with -6, which would hide the exit code.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
