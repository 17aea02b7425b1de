"""A stay as the device records it: placement pressure, pump speed, motor current at 25 Hz.

The chosen stay is replayed tick by tick from the hourly snapshots of its cohort. Every beat
then gets an onset of its own and the heart of its moment, interpolated between ticks, and the
circulation runs beat after beat. Ten-minute lanes run side by side; each begins `LEAD` beats
early on the same beats as its neighbor, so lanes join without a seam. Tick k covers the time
from k to k + 1 ticks under level[k]; the course that it leaves describes its end.

The transducer's offset and the bias of the estimated ventricular pressure (`course.observe`)
belong to a console's own readings and are left out; `recording.py` adds the noise of a waveform.
"""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float, Int, Int8, PRNGKeyArray

from stepdown.handover import Cohort
from stepdown.patients.cohort import Latents, Patient, in_groups, tick, tick_keys
from stepdown.patients.course import circulation_of, truth
from stepdown.patients.heart import STEPS_PER_BEAT, Circulation, Volumes, activation, step
from stepdown.patients.population import World, host_generator
from stepdown.patients.recording import Recording, SensorConfig, sense
from stepdown.signals import LOWEST

LANES = 72  # in one compiled call
BEATS = 128  # of every lane in one compiled call
HOURS = 24  # replayed in one compiled call
LEAD = 40  # beats before a lane; by then its start is forgotten to 0.001 mmHg
VARIABILITY_KEPT, VARIABILITY_NEW = 0.8, 0.6  # from beat to beat in sinus rhythm; judgment
VARIABILITY_BEATS = 30  # after which nothing is kept
INTERVAL_LIMITS = (-0.4, 0.6)  # share by which a beat may come early or late


@dataclass(frozen=True)
class WaveformConfig:
    """How a stay is recorded."""

    rate: float = 25.0  # Hz
    interval_spread: float = 0.015  # of the beat interval in sinus rhythm, as a share
    fibrillation_spread: float = 0.13
    lane: float = 600.0  # s that run side by side; matters for speed alone
    sensors: SensorConfig = field(default_factory=SensorConfig)


class Waveform(eqx.Module):
    """One recorded stay, and the noise-free truth behind every block of it."""

    recording: Recording
    artifact: Int8[np.ndarray, " samples"]  # recording.ARTIFACTS
    level: Int[np.ndarray, " blocks"]  # P-level in force
    truth: Float[np.ndarray, "blocks signals"]  # signals.SIGNALS, over the beats of the block
    minutes: float = eqx.field(static=True)  # of a block: one tick of the cohort


class Stay(eqx.Module):
    """A replayed stay; leaves with `knots` = ticks + 1 begin with the patient as admitted."""

    circulation: Circulation  # leaves (knots,)
    volumes: Volumes  # leaves (knots,)
    fibrillating: Float[np.ndarray, " knots"]
    level: Int[np.ndarray, " ticks"]
    signals: Float[np.ndarray, "ticks signals"]  # as the cohort recorded them
    truth: Float[np.ndarray, "ticks signals"]  # of the last beat of each tick


class _Beats(eqx.Module):
    """Every beat of a stay."""

    onset: Float[np.ndarray, " beats"]  # s
    circulation: Circulation  # leaves (beats,)
    level: Int[np.ndarray, " beats"]


def simulate_waveforms(
    cohort: Cohort,
    latents: Latents,
    world: World,
    patient: int,
    config: WaveformConfig = WaveformConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
) -> Waveform:
    """Record the stay of row `patient`, beat by beat."""
    k_beats, k_sensors = jr.split(key)
    stay = replay_stay(cohort, latents, world, patient)
    beats = _draw_beats(stay, world, config, key=k_beats)
    aortic, flow, facts = _run(beats, stay, world, config.lane)
    seconds = len(stay.level) * 3600 * world.dt
    second = np.arange(round(seconds * config.rate)) / config.rate
    beat = np.searchsorted(beats.onset, second, side="right") - 1
    # moment i of a beat ends its step i; across a beat's onset the steps simply go on
    place = (second - beats.onset[beat]) / beats.circulation.period[beat]
    place = (beat + place) * STEPS_PER_BEAT - 1
    speed, current = _motor(world, beats.level[beat], _between(flow, place))
    bias = float(latents.patients.traits.current_bias[patient])
    ideal = Recording(second, _between(aortic, place), speed, current + bias)
    recording, artifact = sense(ideal, config.sensors, key=k_sensors)
    true = _block_truth(beats, facts, stay, world)
    return Waveform(recording, artifact, stay.level, true, 60.0 * world.dt)


def replay_stay(cohort: Cohort, latents: Latents, world: World, patient: int) -> Stay:
    """Every tick of one stay again, each hour from its own snapshot."""
    ticks = int(np.asarray(cohort.seen[patient]).sum())
    per_hour = round(1 / world.dt)
    hour = np.arange(-(-ticks // per_hour))
    snapshots = jax.tree.map(lambda x: x[patient][hour], (latents.course, latents.memory))
    row = jax.tree.map(lambda x: x[patient], latents.patients)
    rows = (*snapshots, hour * per_hour)
    start, after = in_groups(_replay, rows, row, latents.keys[patient], world, size=HOURS)
    after = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:ticks], after)
    knots = jax.tree.map(lambda a, b: np.concatenate([a[:1], b]), start, after[0])
    return Stay(*knots, *after[1:])


def _replay(courses, memories, first, patient: Patient, key, world: World):
    """The state at the start of each hour, and after each of its ticks."""
    traits = patient.traits

    def state(course):
        heart = jax.tree.map(jnp.asarray, circulation_of(course, traits, world.population))
        return heart, course.volumes, course.fibrillating

    def hour(course, memory, first):
        def body(now, k):
            now, (signals, level) = tick(now, world, key=k)
            true = truth(now.course, traits, level, world)
            return now, (state(now.course), level, signals, true)

        now = Patient(traits, course, patient.clinician, memory)
        keys = tick_keys(key, first, round(1 / world.dt))
        return state(course), jax.lax.scan(body, now, keys)[1]

    return jax.vmap(hour)(courses, memories, first)


def _draw_beats(stay: Stay, world: World, config: WaveformConfig, *, key) -> _Beats:
    """Beats from `LEAD` before the stay to just past its end, with the hearts that beat them."""
    rng = host_generator(key)
    tick_seconds = 3600 * world.dt
    knots = tick_seconds * np.arange(len(stay.level) + 1)
    grid = np.arange(-2.0 * LEAD, knots[-1] + 10.0)
    rate = np.interp(grid, knots, 1 / stay.circulation.period)
    count = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)])  # beats due by then
    due = np.arange(int(1.1 * count[-1]))
    irregular = np.interp(np.interp(due, count, grid), knots, stay.fibrillating)
    white = rng.standard_normal(len(due) + VARIABILITY_BEATS - 1)
    kernel = VARIABILITY_NEW * VARIABILITY_KEPT ** np.arange(VARIABILITY_BEATS)
    slow = np.convolve(white, kernel, mode="valid")  # AR(1), unit variance
    sinus = config.interval_spread * (1 - irregular) * slow
    erratic = config.fibrillation_spread * irregular * white[: len(due)]
    turn = np.cumsum(1 + np.clip(sinus + erratic, *INTERVAL_LIMITS))
    onset = np.interp(turn[turn < count[-1]], count, grid)
    start = onset[:-1]
    heart = jax.tree.map(lambda x: np.interp(start, knots, x).astype(np.float32), stay.circulation)
    period = np.diff(onset).astype(np.float32)
    # a beat runs to its end under the level in force at its onset
    level = stay.level[np.clip(start // tick_seconds, 0, len(stay.level) - 1).astype(int)]
    return _Beats(start, eqx.tree_at(lambda c: c.period, heart, period), level)


def _run(beats: _Beats, stay: Stay, world: World, seconds: float):
    """Integrate all lanes; aortic pressure and pump flow of every step, facts of every beat."""
    end = len(stay.level) * 3600 * world.dt
    lane = np.arange(int(np.ceil(end / seconds)))
    first = np.searchsorted(beats.onset, lane * seconds)
    last = np.append(first[1:], len(beats.onset))
    runs = -(-int((last - first).max() + LEAD) // BEATS)
    index = (first - LEAD)[:, None] + np.arange(runs * BEATS)
    index = np.clip(index, 0, len(beats.onset) - 1)
    knot = np.round(lane * seconds / (3600 * world.dt)).astype(int)
    volumes = jax.tree.map(lambda x: x[knot], stay.volumes)
    shape = (len(beats.onset), STEPS_PER_BEAT)
    out = np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.zeros((shape[0], 8))
    for run in range(runs):
        now = index[:, run * BEATS : (run + 1) * BEATS]
        rows = (volumes, jax.tree.map(lambda x, i=now: x[i], beats.circulation), beats.level[now])
        volumes, record = in_groups(_run_lanes, rows, world.profile, size=LANES)
        # the rest is a neighbor's; the very first lane also has the beat that the stay begins in
        own = (now >= (first - (lane == 0))[:, None]) & (now < last[:, None])
        for kept, part in zip(out, record, strict=True):
            kept[now[own]] = part[own]
    return out


def _run_lanes(volumes: Volumes, circulation: Circulation, level, profile):
    def lane(volumes, circulation, level):
        return jax.lax.scan(lambda v, now: _beat(v, *now, profile), volumes, (circulation, level))

    return jax.vmap(lane)(volumes, circulation, level)


def _beat(volumes: Volumes, circulation: Circulation, level, profile):
    """One beat, with its trace; blood given or lost meanwhile enters or leaves the veins."""
    excess = circulation.blood_volume - volumes.total()
    volumes = eqx.tree_at(lambda v: v.veins, volumes, volumes.veins + excess)
    phases = (jnp.arange(STEPS_PER_BEAT) + 1.0) / STEPS_PER_BEAT
    active = activation(phases, circulation.period, circulation.relaxation)
    volumes, now = jax.lax.scan(
        lambda v, e: step(v, circulation, level, profile, e), volumes, active
    )
    facts = [
        now.aortic.mean(),
        now.pump.mean(),
        now.lv.mean(),
        now.lv[-1],
        now.aortic.max(),
        now.aortic.min(),
        circulation.relaxation,
        jnp.max(now.lv / now.lv_volume),
    ]
    return volumes, (now.aortic, now.pump, jnp.stack(facts))


def _between(trace: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Linear interpolation at a fractional step of the whole stay."""
    flat, low = trace.ravel(), place.astype(int)
    return flat[low] + (place - low) * (flat[low + 1] - flat[low])


def _motor(world: World, level, flow):
    """Speed in rpm and current in mA (`pump.motor_current` over samples)."""
    profile = jax.tree.map(np.asarray, world.profile)
    speed = profile.speed[level - LOWEST]
    slope = profile.current_per_flow * speed / profile.reference_speed
    return speed, profile.idle_current[level - LOWEST] + slope * flow


def _block_truth(beats: _Beats, facts: np.ndarray, stay: Stay, world: World) -> np.ndarray:
    """The twelve signals of every tick; pressures and flow weighted by time, the rest by beat."""
    blocks = len(stay.level)
    block = np.floor(beats.onset / (3600 * world.dt)).astype(int)
    inside = (block >= 0) & (block < blocks)
    block, facts = block[inside], facts[inside]
    period = beats.circulation.period[inside].astype(float)

    def mean(values, weight):
        return np.bincount(block, values * weight, blocks) / np.bincount(block, weight, blocks)

    each = np.ones_like(period)
    pressure, flow, lvp = (mean(facts[:, i], period) for i in range(3))
    lvedp, sbp, dbp, tau, ese = (mean(facts[:, i], each) for i in range(3, 8))
    speed, current = _motor(world, stay.level, flow)
    rate = 60 / mean(period, each)
    columns = (pressure, speed, current, flow, lvp, lvedp, rate, sbp, dbp)
    return np.stack([*columns, sbp - dbp, 1000 * tau, ese], axis=1)
