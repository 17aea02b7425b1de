"""How fast policies learn: `python -m benchmarks.speed.policies` (one core: taskset -c 0).

Ours against a peer in the usual eager style, written here for this purpose in PyTorch: the same
discrete SAC update at the same sizes, rollouts that ask all seven members, and a flat FAISS search
for the neighbors (`pip install torch faiss-cpu`; without FAISS the peer pays nothing for it).
Rounds alternate, so that both meet the same machine; CPU seconds are counted. With a GPU (or
`--gpu`) it measures 1, 5 and 40 seeds side by side with compile times, against eager PyTorch and
one captured as a CUDA graph. Prints Markdown tables.
"""

import argparse
import copy
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.clocks import machine
from stepdown.guardian.kde import KdeConfig, fit_kde
from stepdown.guardian.threshold import make_guardian
from stepdown.handover import Transitions
from stepdown.policies.ensemble import EnsembleConfig, fit_ensemble
from stepdown.policies.learning import CHUNK, updates_per_call
from stepdown.policies.model_based import OURS, Setting, Training, prepare
from stepdown.policies.penalties import DensityPenalty
from stepdown.training import FitConfig

RECORDED, INPUTS, OUTPUTS, POINTS = 13_400, 73, 72, 74
CENTER = np.array([75, 35e3, 500, 3, 60, 15, 80, 110, 60, 30, 60, 1.5], np.float32)
SD = np.array([10, 3e3, 50, 0.5, 5, 3, 10, 8, 5, 8, 5, 0.2], np.float32)

Torch = Any  # the module, which need not be installed to read this file
Tensors = dict[str, Any]


def load_torch() -> Torch:
    """What the peer is written in."""
    import torch  # pyright: ignore[reportMissingImports]

    return torch


def random_hours(rows: int, role, seed: int) -> Transitions:
    """Hours with plausible numbers and no meaning."""
    draw = np.random.default_rng(seed)
    levels = draw.integers(2, 10, size=(2, rows))

    def states(level):
        signals = CENTER + SD * draw.normal(size=(rows, 6, 12))
        column = np.broadcast_to(level[:, None, None], (rows, 6, 1))
        return jnp.asarray(np.concatenate([signals, column], -1), jnp.float32)

    flags, reward = jnp.zeros(rows, bool), jnp.asarray(draw.normal(size=rows), jnp.float32)
    return Transitions(
        state=states(levels[0]),
        level=jnp.asarray(levels[1], jnp.int32),
        levels=jnp.tile(jnp.asarray(levels[1], jnp.int32)[:, None], (1, 6)),
        reward=reward,
        unshaped=reward,
        next_state=states(levels[1]),
        last=flags,
        died=flags,
        filled=flags,
        patient=jnp.asarray(np.arange(rows) * 250 // rows, jnp.int32),
        role=role,
    )


def our_parts(hours: Transitions):
    """A full-size ensemble after one pass, and CORMPO's penalty with exact neighbors."""
    ensemble, _ = fit_ensemble(hours, EnsembleConfig(fit=FitConfig(epochs=1)), key=jr.key(0))
    density = fit_kde(hours, KdeConfig())
    guardian = make_guardian(density, random_hours(2000, "select", 1))
    return ensemble, DensityPenalty(guardian, jnp.asarray(0.08))


class Peer:
    """Discrete SAC, ensemble and neighbor search in the usual eager style."""

    def __init__(self, torch: Torch, device: str = "cpu", rows: int = 250_000):
        self.torch, self.device, self.rows = torch, device, rows
        self.actor, self.critics = self.network(), [self.network(), self.network()]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros(1, device=device, requires_grad=True)
        # a captured graph needs the step count on the device
        adam = {"lr": 3e-4, "capturable": device != "cpu"}
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), **adam)
        self.critic_adams = [torch.optim.Adam(c.parameters(), **adam) for c in self.critics]
        self.alpha_adam = torch.optim.Adam([self.log_alpha], **adam)
        draw = np.random.default_rng(0)
        self.buffer = {
            "now": draw.normal(size=(rows, INPUTS)).astype(np.float32),
            "later": draw.normal(size=(rows, INPUTS)).astype(np.float32),
            "level": draw.integers(0, 8, size=(rows, 1)),
            "reward": draw.normal(size=(rows, 1)).astype(np.float32),
            "end": np.zeros((rows, 1), np.float32),
        }
        sizes = (POINTS, 200, 200, 200, 200, 2 * OUTPUTS)
        self.members = [
            torch.randn(7, a, b, device=device) / a**0.5
            for a, b in zip(sizes[:-1], sizes[1:], strict=True)
        ]

    def network(self) -> Any:
        """A perceptron of the policies' size."""
        nn = self.torch.nn
        layers = [nn.Linear(INPUTS, 256), nn.ReLU(), nn.Linear(256, 256)]
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(256, 8)).to(self.device)

    def sample(self, count: int) -> Tensors:
        """Random rows, copied to the device."""
        index = np.random.randint(0, self.rows, count)
        return {
            name: self.torch.tensor(column[index]).to(self.device)
            for name, column in self.buffer.items()
        }

    def update(self) -> None:
        """One update on a batch of 13 real and 243 imagined rows; reads its losses."""
        real, imagined = self.sample(13), self.sample(243)
        batch = {name: self.torch.cat([real[name], imagined[name]]) for name in real}
        [loss.item() for loss in self.learn(batch)]

    def learn(self, batch: Tensors) -> list[Any]:
        """Critics, actor, temperature and targets, one after the other."""
        torch = self.torch
        now, later, alpha = batch["now"], batch["later"], self.log_alpha.exp().detach()
        with torch.no_grad():
            log_policy = torch.log_softmax(self.actor(later), -1)
            value = torch.min(*[target(later) for target in self.targets])
            soft = (log_policy.exp() * (value - alpha * log_policy)).sum(-1, keepdim=True)
            goal = batch["reward"] + 0.99 * (1 - batch["end"]) * soft
        losses = []
        for critic, adam in zip(self.critics, self.critic_adams, strict=True):
            losses.append(((critic(now).gather(1, batch["level"]) - goal) ** 2).mean())
            step(losses[-1], adam)
        log_policy = torch.log_softmax(self.actor(now), -1)
        policy = log_policy.exp()
        with torch.no_grad():
            value = torch.min(*[critic(now) for critic in self.critics])
        losses.append((policy * (alpha * log_policy - value)).sum(-1).mean())
        step(losses[-1], self.actor_adam)
        entropy = -(policy * log_policy).sum(-1).mean().detach()
        losses.append((self.log_alpha * (entropy - 0.2)).sum())
        step(losses[-1], self.alpha_adam)
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                    slow.copy_(slow * (1 - 0.005) + fast * 0.005)
        return [loss.detach() for loss in losses]

    def imagine(self, rows: int = 10_000) -> None:
        """One hour for all rows: every member is asked, then one is chosen for each row."""
        with self.torch.no_grad():
            self._imagine(rows)

    def _imagine(self, rows: int) -> None:
        torch = self.torch
        inputs = np.random.normal(size=(rows, POINTS)).astype(np.float32)
        hidden = torch.tensor(inputs).to(self.device).expand(7, rows, POINTS)
        for weight in self.members[:-1]:
            hidden = torch.nn.functional.silu(torch.bmm(hidden, weight))
        mean, raw = torch.bmm(hidden, self.members[-1]).chunk(2, -1)
        mean, sd = mean.cpu().numpy(), torch.exp(0.5 * torch.tanh(raw)).cpu().numpy()
        drawn = mean + np.random.normal(size=mean.shape).astype(np.float32) * sd
        drawn[np.random.randint(0, 5, rows), np.arange(rows)]
        np.linalg.norm(sd, axis=2).max(0)  # MOPO's penalty
        states = torch.tensor(inputs[:, :INPUTS]).to(self.device)
        torch.multinomial(torch.softmax(self.actor(states), -1), 1).cpu().numpy()


def step(loss: Any, adam: Any) -> None:
    """The usual three lines."""
    adam.zero_grad()
    loss.backward()
    adam.step()


def neighbor_search() -> Callable[[], object]:
    """The hundred nearest of 10,000 queries by FAISS' flat index, if it is installed."""
    if importlib.util.find_spec("faiss") is None:
        return lambda: None
    import faiss  # pyright: ignore[reportMissingImports]

    faiss.omp_set_num_threads(1)
    draw = np.random.default_rng(0)
    index = faiss.IndexFlatL2(POINTS)
    index.add(draw.normal(size=(RECORDED, POINTS)).astype(np.float32))
    queries = draw.normal(size=(10_000, POINTS)).astype(np.float32)
    return lambda: index.search(queries, 100)


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    jax.block_until_ready(work())
    return time.process_time() - start


def epoch(setting: Setting, training: Training, done: int, key) -> tuple[Training, int]:
    """A whole epoch of ours: one call on a GPU, several on a CPU."""
    for _ in range(setting.every // updates_per_call(setting.every)):
        training, done = setting.advance(training, done, key=key)
    jax.block_until_ready(training.tally)
    return training, done


def our_round(setting: Setting, training: Training, done: int, key) -> tuple[Training, int, dict]:
    """One epoch of ours; only its first chunk rolls out, so updates are timed on the others."""
    times = []
    for _ in range(setting.sizes.every // CHUNK):
        start = time.process_time()
        training, done = setting.advance(training, done, key=key)
        jax.block_until_ready(training.learner)
        times.append(time.process_time() - start)
    update = float(np.median(times[1:])) / CHUNK
    rolled = times[0] - CHUNK * update
    return training, done, {"update": update, "rollout": rolled, "epoch": sum(times)}


def peer_round(peer: Peer, search: Callable[[], object]) -> dict[str, float]:
    """An epoch of the peer, composed of 1,000 updates and five hours with their searches."""
    update = cpu_seconds(lambda: [peer.update() for _ in range(100)]) / 100
    rolled = 5 * (cpu_seconds(peer.imagine) + cpu_seconds(search))
    return {"update": update, "rollout": rolled, "epoch": 1000 * update + rolled}


def on_cpu(torch: Torch, rounds: int) -> None:
    """Alternate an epoch of ours with one of the peer."""
    torch.set_num_threads(1)
    hours = random_hours(RECORDED, "train", 0)
    setting = prepare(hours, *our_parts(hours), OURS)
    peer, search, key = Peer(torch), neighbor_search(), jr.key(1)
    training, done = epoch(setting, setting.begin(key=key), 0, key)  # compiles
    peer_round(peer, search)
    ours, theirs = [], []
    for _ in range(rounds):
        training, done, times = our_round(setting, training, done, key)
        ours.append(times)
        theirs.append(peer_round(peer, search))
    print("| work | ours, CPU s | peer, CPU s | ratio |\n|---|---|---|---|")
    for work in ("update", "rollout", "epoch"):
        one, other = (float(np.median([row[work] for row in rows])) for rows in (ours, theirs))
        print(f"| {work} | {one:.4f} | {other:.4f} | {other / one:.2f} |")


def on_gpu(torch: Torch, seeds: list[int], epochs: int) -> None:
    """Wall seconds of an epoch for several seeds side by side, and PyTorch's updates."""
    hours = random_hours(RECORDED, "train", 0)
    setting = prepare(hours, *our_parts(hours), OURS)
    print("| seeds | first epoch (compiles), s | epoch, s | seed-updates/s | 100 epochs, s |")
    print("|---|---|---|---|---|")
    for count in seeds:
        key = jr.key(1) if count == 1 else jr.split(jr.key(1), count)
        start = time.perf_counter()
        training, done = epoch(setting, setting.begin(key=key), 0, key)
        first = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(epochs):
            training, done = epoch(setting, training, done, key)
        jax.block_until_ready(training.pool)
        each = (time.perf_counter() - start) / epochs
        rate = count * setting.sizes.every / each
        print(f"| {count} | {first:.1f} | {each:.4f} | {rate:,.0f} | {100 * each:.1f} |")
        if stats := jax.devices()[0].memory_stats():
            print(f"\npeak memory so far: {stats['peak_bytes_in_use'] / 2**30:.1f} GiB\n")
    if torch.cuda.is_available():
        torch_on_gpu(torch)


def torch_on_gpu(torch: Torch, updates: int = 300) -> None:
    """Updates per second of the peer, eager and as one captured graph."""
    peer = Peer(torch, "cuda")

    def rate(work: Callable[[], object]) -> float:
        for _ in range(20):
            work()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(updates):
            work()
        torch.cuda.synchronize()
        return updates / (time.perf_counter() - start)

    def seconds(work: Callable[[], object]) -> float:
        return 1 / rate(work)

    eager, hour = rate(peer.update), seconds(peer.imagine)
    table = {name: torch.tensor(x).to("cuda") for name, x in peer.buffer.items()}

    def on_device() -> None:
        index = torch.randint(0, peer.rows, (256,), device="cuda")
        peer.learn({name: column[index] for name, column in table.items()})

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            on_device()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        on_device()
    graphed = rate(graph.replay)
    print("| PyTorch, one seed | updates/s | 100 epochs without neighbors, s |\n|---|---|---|")
    for name, speed in (("eager", eager), ("CUDA graph", graphed)):
        print(f"| {name} | {speed:,.0f} | {100 * (1000 / speed + 5 * hour):.1f} |")


def main() -> None:
    """Measure and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gpu", action="store_true", help="the GPU tables, on any device")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 5, 40])
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch = load_torch()
    print(f"{machine()}; torch {torch.__version__}\n")
    if options.gpu or jax.default_backend() != "cpu":
        return on_gpu(torch, options.seeds, options.epochs)
    return on_cpu(torch, options.rounds)


if __name__ == "__main__":
    main()
