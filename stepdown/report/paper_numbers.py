"""The paper's own numbers, copied with the table they stand in.

They come from 379 real patients and the authors' twin; ours come from simulated patients and our
twin. Scales agree by construction, patients do not: the numbers show what was claimed, not what
ours should equal.
"""

from dataclasses import dataclass

CAVEAT = (
    "The paper's numbers come from other patients (379 real stays), another twin and actions "
    "that are not discrete: compare orders and margins, not digits."
)

Number = tuple[float, float | None]  # mean, and sd over five seeds where printed
Metrics = dict[str, Number]

SOURCES = {
    "recorded": "Table 3 (tab:results_real), Sec. 5.3",
    "noiseless": "Table 1 (tab:syn_1), Sec. 5.2",
    "noisy": "Table 2 (tab:robustness), Sec. 5.2",
    "drop": "Table 2 (tab:robustness), Sec. 5.2",
    "time": "Table 4 (tab:runtime_comparison), Sec. 5.3, one seed on an A100",
    "penalty": "tab:penalty_comparison, App. F",
    "twin": "tab:world_model_results, App. E",
    "settings": "tab:alt_setting, App. B",
}

RECORDED: dict[str, Metrics] = {
    # the paper's expert: the recorded levels, played in its twin
    "clinicians": {"reward": (0.557, None), "acp": (1.79, None), "ws_gradient": (0.053, None)},
    "bc": {"reward": (0.175, 0.118), "acp": (0.068, 0.012), "ws_gradient": (0.345, 0.008)},
    "mbpo": {"reward": (0.420, 0.139), "acp": (0.459, 0.032), "ws_gradient": (0.147, 0.007)},
    "mopo": {"reward": (0.373, 0.129), "acp": (0.984, 0.020), "ws_gradient": (0.042, 0.006)},
    "svr": {"reward": (0.530, 0.152), "acp": (0.599, 0.057), "ws_gradient": (0.166, 0.003)},
    "cormpo_kde": {"reward": (0.687, 0.106), "acp": (0.018, 0.007), "ws_gradient": (0.173, 0.007)},
    "cormpo_flow": {"reward": (0.516, 0.126), "acp": (0.258, 0.036), "ws_gradient": (0.155, 0.003)},
}
NOISELESS: dict[str, Metrics] = {
    "expert": {"reward": (1.167, None), "acp": (9.26, None), "ws_gradient": (-0.091, None)},
    "bc": {"reward": (0.101, 0.154), "acp": (3.703, 0.141), "ws_gradient": (-0.023, 0.008)},
    "mbpo": {"reward": (1.108, 0.028), "acp": (1.963, 0.078), "ws_gradient": (-0.076, 0.004)},
    "mopo": {"reward": (1.059, 0.113), "acp": (1.907, 0.069), "ws_gradient": (-0.021, 0.010)},
    "svr": {"reward": (0.278, 0.158), "acp": (2.945, 0.107), "ws_gradient": (-0.043, 0.007)},
    "cormpo_kde": {"reward": (1.224, 0.105), "acp": (0.285, 0.035), "ws_gradient": (0.040, 0.010)},
}
NOISY: dict[str, Metrics] = {
    "expert": {"reward": (1.110, None)},
    "mbpo": {"reward": (1.064, 0.031)},
    "mopo": {"reward": (0.947, 0.094)},
    "cormpo_kde": {"reward": (1.223, 0.106)},
}
REWARDS = {"recorded": RECORDED, "noiseless": NOISELESS, "noisy": NOISY}
DROP_PERCENT = {"expert": 5.74, "mbpo": 3.97, "mopo": 10.6, "cormpo_kde": 0.082}
SECONDS = {"mbpo": 1185.670, "mopo": 1165.866, "cormpo_kde": 1195.765}

TWINS: dict[str, Metrics] = {
    "mlp": {
        "mae_published": (9.85, 0.44), "mae_map": (4.11, 0.01), "trend": (0.83, 0.03),
        "mae_published_static": (8.88, 0.45),
        "mae_published_changing": (13.76, 0.40),
        "crps_published": (7.43, 0.22),
    },
    "np": {
        "mae_published": (8.32, 0.18), "mae_map": (4.63, 0.06), "trend": (0.89, 0.00),
        "mae_published_static": (6.83, 0.26),
        "mae_published_changing": (14.31, 0.22),
        "crps_published": (4.92, 0.66),
    },
    "clmu": {
        "mae_published": (7.61, 0.12), "mae_map": (4.31, 0.04), "trend": (0.89, 0.00),
        "mae_published_static": (7.00, 0.11),
        "mae_published_changing": (10.06, 0.17),
        "crps_published": (5.48, 0.09),
    },
    "ssm": {
        "mae_published": (8.12, 0.46), "mae_map": (4.12, 0.11), "trend": (0.88, 0.00),
        "mae_published_static": (7.49, 0.55),
        "mae_published_changing": (10.65, 0.11),
        "crps_published": (4.43, 0.29),
    },
    "tdt": {
        "mae_published": (5.41, 0.05), "mae_map": (3.88, 0.12), "trend": (0.88, 0.01),
        "mae_published_static": (4.90, 0.05),
        "mae_published_changing": (7.47, 0.08),
        "crps_published": (3.45, 0.12),
    },
}  # fmt: skip
WINDOWS: dict[str, Metrics] = {  # as benchmarks name them: length of the window, time of a sample
    "15 min at 30 s": {"mse_z": (0.234, None), "mse_map": (3.03, None)},
    "60 min at 300 s": {"mse_z": (0.142, 0.012), "mse_map": (2.711, 0.182)},
    "60 min at 600 s": {"mse_z": (0.124, 0.027), "mse_map": (2.59, 0.154)},
    "120 min at 300 s": {"mse_z": (0.215, 0.009), "mse_map": (3.583, 0.340)},
    "120 min at 600 s": {"mse_z": (0.159, 0.006), "mse_map": (3.356, 0.226)},
}


@dataclass(frozen=True)
class Claim:
    """What the paper says of CORMPO's margin, and which of our numbers to hold beside it."""

    words: str
    text: str  # as the text claims it
    tables: str  # as its own tables give it
    data: str
    metric: str  # of problem/metrics.py, or "drop"


CLAIMS = (
    Claim("Recorded: reward", "+28 %", "+29.6 % (SVR)", "recorded", "reward"),
    Claim("Recorded: ACP, levels", "−73 %", "−73.5 % (BC)", "recorded", "acp"),
    Claim("Recorded: weaning score", "–", "−49.9 % (BC)", "recorded", "ws_gradient"),
    Claim("Recorded: share of unsafe hours", "–", "–", "recorded", "unsafe_hours"),
    Claim("Noiseless: reward", "+14.9 %", "+10.5 % (MBPO)", "noiseless", "reward"),
    Claim("Noiseless: ACP, levels", "−82.6 %", "−85.1 % (MOPO)", "noiseless", "acp"),
    Claim("Noiseless: weaning score", "2.9 times", "+0.061 (MOPO)", "noiseless", "ws_gradient"),
    Claim("Noiseless: share of unsafe hours", "–", "–", "noiseless", "unsafe_hours"),
    Claim("Reward lost to noise", "0.08 %", "0.08 %", "noisy", "drop"),
)
