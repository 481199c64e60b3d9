"""One train step on several ranks, compared with the same step on one; then an optimiser step.

The parent starts one process a rank (``python -m envtrain.step``), waits, and never leaves one
behind. Each rank runs the whole model twice from the same seeds, uncut and cut, and compares the
loss and every gradient itself, so a rank that drifts from its peers is seen too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

#: Largest difference accepted, relative to the largest value of the tensor. fp32 sums in another
#: order differ by about 7e-7 here, measured on 2 gloo ranks.
TOLERANCE = 1e-5
#: Rank counts that divide the 4 key/value heads and the 64 tokens of the draft vocabulary.
RANKS = (1, 2, 4)
#: Seconds for the whole run; most of it is importing, about 15 s a rank on a quiet core.
TIME_LIMIT = 300.0
LAST_LINES = 12


@dataclass(frozen=True)
class Result:
    """What one rank saw. Differences are relative; ``losses`` are of the cut model's two steps."""

    ranks: int
    device: str
    backend: str
    loss_single: float
    losses: tuple[float, float]
    compared: int
    worst_name: str
    worst: float
    torch: str
    speculators: str

    @property
    def complaint(self) -> str | None:
        """Why the step is not right, or None."""
        # "not <=" rather than ">": a NaN must not pass.
        if not self.worst <= TOLERANCE:
            many = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
            return f"{many} and one rank disagree: {self.worst_name} by {self.worst:.1e}"
        first, second = self.losses
        if not second < first:
            return f"the loss does not fall after a step: {first:.6f}, then {second:.6f}"
        return None


def _rank_of(difference: float) -> float:
    # NaN compares false with everything, so max() would pass over it.
    return float("inf") if difference != difference else difference


class StepError(Exception):
    """A rank died, or the time limit passed; the message holds its last lines."""


def rank_main(device: str, rank: int, ranks: int, folder: Path) -> Result:
    """One rank's part; all ranks meet in ``folder``."""
    from importlib.metadata import version

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    from envtrain import model, parallel

    torch.set_num_threads(1)
    where = "cpu" if device == "cpu" else f"cuda:{rank}"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend := "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=ranks,
    )
    mesh = init_device_mesh(device, (ranks,))
    # Each rank its own, from the same seed: no rank reads what another is still writing.
    verifier = folder / f"verifier{rank}"
    model.write_verifier(verifier)
    single, cut = model.draft(verifier).to(where), model.draft(verifier).to(where)
    parallel.shard(cut, mesh)
    arguments = model.batch(where)

    def step(draft: torch.nn.Module) -> torch.Tensor:
        _tokens, loss, _metrics = draft(**arguments, ttt_steps=model.TTT_STEPS)
        loss.backward()
        return loss.detach()

    def full(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient

    def difference(seen: torch.Tensor, expected: torch.Tensor) -> float:
        return ((seen - expected).abs().max() / expected.abs().max()).item()

    loss_single, loss = step(single), step(cut)
    parameters = dict(cut.named_parameters())
    differences = {"loss": difference(loss, loss_single)}
    for name, expected in single.named_parameters():
        if expected.requires_grad:
            differences[name] = difference(full(parameters[name].grad), expected.grad)
    worst = max(differences, key=lambda name: _rank_of(differences[name]))
    trained = [p for p in cut.parameters() if p.requires_grad]
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    torch.optim.AdamW(trained, lr=1e-3).step()
    second = step(cut)
    dist.destroy_process_group()
    return Result(
        ranks=ranks,
        device=device,
        backend=backend,
        loss_single=loss_single.item(),
        losses=(loss.item(), second.item()),
        compared=len(differences),
        worst_name=worst,
        worst=differences[worst],
        torch=torch.__version__,
        speculators=version("speculators"),
    )


def run(ranks: int, device: str) -> list[Result]:
    """Start the ranks, wait for them, and return what each saw.

    Raises:
        StepError: a rank ended with an error, or all together took longer than TIME_LIMIT.
    """
    with tempfile.TemporaryDirectory(prefix="envtrain-") as made:
        folder = Path(made)
        environment = {
            **os.environ,
            # Eagle3DraftModel.forward is wrapped in torch.compile, and compiled flex_attention has
            # no CPU backward (torch 2.10): every device runs it uncompiled, so all are comparable.
            "TORCHDYNAMO_DISABLE": "1",
            # The ranks share this machine, and a container may have no other network.
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
        }
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                arguments = [device, str(rank), str(ranks), str(folder), str(os.getpid())]
                with (folder / f"log{rank}").open("wb") as log:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, "-W", "ignore", "-m", "envtrain.step", *arguments],
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=log,
                            env=environment,
                        )
                    )
            _wait(processes, folder)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
        texts = [(folder / f"result{rank}").read_text() for rank in range(ranks)]
    return [Result(**{**(seen := json.loads(t)), "losses": tuple(seen["losses"])}) for t in texts]


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + TIME_LIMIT
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                raise StepError(f"rank {rank} ended with {_ending(code)}:\n{_tail(folder, rank)}")
        if None not in codes:
            return
        if time.monotonic() > deadline:
            rank = codes.index(None)
            raise StepError(
                f"rank {rank} was not done after {TIME_LIMIT:.0f} s; its last lines:\n"
                f"{_tail(folder, rank)}"
            )
        time.sleep(0.1)


def _ending(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"


def _tail(folder: Path, rank: int) -> str:
    lines = (folder / f"log{rank}").read_text(errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join(f"  {line}" for line in lines) or "  (it printed nothing)"


def summary(results: Sequence[Result], seconds: float) -> str:
    """One screen about a run, from all ranks' results."""
    first, worst = results[0], worst_of(results)
    return "\n".join(
        [
            f"EAGLE-3 train step, speculators {first.speculators}, torch {first.torch}, fp32",
            f"  ranks            {first.ranks} × {first.device}, {first.backend}",
            f"  loss             {first.losses[0]:.8f}, on one rank {first.loss_single:.8f}",
            f"  compared         {first.compared} (the loss and every gradient), on every rank",
            f"  worst difference {worst.worst:.1e} in {worst.worst_name}, allowed {TOLERANCE:.0e}",
            f"  after AdamW      loss {first.losses[1]:.8f}",
            f"  took             {seconds:.1f} s",
        ]
    )


def worst_of(results: Sequence[Result]) -> Result:
    """The rank that complains, else the one with the largest difference."""
    return max(results, key=lambda r: (r.complaint is not None, _rank_of(r.worst)))


def as_json(results: Sequence[Result], seconds: float) -> str:
    """The worst rank's result as one line of JSON."""
    worst = worst_of(results)
    return json.dumps(
        {**asdict(worst), "tolerance": TOLERANCE, "complaint": worst.complaint, "seconds": seconds}
    )


def _child(arguments: Sequence[str]) -> NoReturn:
    device, rank, ranks, folder, parent = arguments
    # PR_SET_PDEATHSIG: a rank must not outlive a parent that was killed outright.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the parent is gone")
    result = rank_main(device, int(rank), int(ranks), Path(folder))
    (Path(folder) / f"result{rank}").write_text(json.dumps(asdict(result)))
    # Skips interpreter shutdown, where libraries' threads can still fail after the work is done.
    os._exit(0)


if __name__ == "__main__":
    _child(sys.argv[1:])
