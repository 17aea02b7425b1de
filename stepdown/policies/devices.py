"""Several GPUs of one machine: each learns its share of the seeds, and none waits for another."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key


def spread_seeds(key: Key[Array, " seeds"]) -> Key[Array, " seeds"]:
    """Lay the seeds over this machine's devices, over as many as share them evenly.

    What is computed from the keys follows them; five seeds use five of eight GPUs, one of two.
    """
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if len(key) % n == 0)
    if count == 1:
        return key
    mesh = Mesh(np.asarray(devices[:count]), ("seeds",))
    return jax.device_put(key, NamedSharding(mesh, PartitionSpec("seeds")))
