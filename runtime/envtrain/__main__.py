"""Command line: ``python -m envtrain step``."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from envtrain import step

DESCRIPTION = "What trains inside an envspec image."

STEP = f"""\
Runs one tensor-parallel train step of speculators' own Eagle3DraftModel (Llama-style draft, tiny
sizes, fp32, 3 test-time-training steps), compares its loss and every gradient with the same step
on one rank, then takes an AdamW step after which the loss must have fallen.

It needs no data, no network and, with --device cpu, no GPU. Ranks are processes on this machine;
a rank that dies ends the others, and the whole run ends after {step.TIME_LIMIT:.0f} seconds.

This is what the Compose service `train` starts for now: the check that this environment can
train. It is no trainer: it writes nothing and keeps nothing.
"""

EXIT_CODES = """\
exit codes:
  0  ranks and single rank agree, and the loss falls
  1  they do not; the last line names the parameter and the difference
  2  wrong arguments
  3  a rank died or took too long; its last lines are shown

examples:
  python -m envtrain step                          2 processes over gloo, no GPU needed
  python -m envtrain step --device cuda --ranks 4  4 GPUs over NCCL
  python -m envtrain step --json                   the same as one line of JSON, for scripts
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("envtrain", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "step",
        help="one train step on several ranks, compared with one rank",
        description=STEP,
        epilog=EXIT_CODES,
        formatter_class=raw,
    )
    one.add_argument(
        "--ranks",
        type=int,
        choices=step.RANKS,
        default=2,
        help="how many ranks share the model; with cuda, each takes a GPU (default: 2)",
    )
    one.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="gloo on cpu, NCCL on cuda"
    )
    one.add_argument("--json", action="store_true", help="print one line of JSON instead")
    arguments = parser.parse_args(argv)

    # `docker stop` sends SIGTERM: leave by an exception, so that the ranks are reaped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.monotonic()
    try:
        results = step.run(arguments.ranks, arguments.device)
    except step.StepError as error:
        print(error, file=sys.stderr)
        return 3
    seconds = round(time.monotonic() - started, 1)
    print((step.as_json if arguments.json else step.summary)(results, seconds))
    complaint = step.worst_of(results).complaint
    if complaint:
        print(complaint, file=sys.stderr)
    return 1 if complaint else 0


if __name__ == "__main__":
    sys.exit(main())
