"""Writes optimizers.json: what several steps of each optimizer make of small parameters, in float64.

Run with torch >= 2.9 and transformers >= 5: python optimizers.py > optimizers.json
AdamW, Adam, SGD and Muon are torch's, Adafactor is transformers'; Lion and LAMB, which neither has, are written out here from
their papers (LAMB's ratio clipped as DeepSpeed's max_coeff and min_coeff). Starting values and gradients are formulas that
the test repeats: value(i) = sin(0.7 i + c) and gradient(i, step) = 0.1 sin(0.37 i + 1.3 step + c), c = 1, 2, 3 by parameter.
"""

import json

import torch
from transformers.optimization import Adafactor

torch.set_default_dtype(torch.float64)
# Muon iterates in bfloat16 on purpose; in float64 it is an oracle.
torch.bfloat16 = torch.float64

SHAPES = {"tall": (6, 4), "wide": (3, 8), "vector": (7,)}
STEPS = 4


def start():
    out = {}
    for c, (name, shape) in enumerate(SHAPES.items(), 1):
        n = torch.Size(shape).numel()
        out[name] = torch.sin(0.7 * torch.arange(n) + c).reshape(shape)
    return out


def grad(name, step):
    c = 1 + list(SHAPES).index(name)
    shape = SHAPES[name]
    n = torch.Size(shape).numel()
    return (0.1 * torch.sin(0.37 * torch.arange(n) + 1.3 * step + c)).reshape(shape)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = torch.sign(b1 * m + (1 - b1) * p.grad)
                p.sub_(g["lr"] * (c + g["weight_decay"] * p))
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, eps, weight_decay, max_coeff, min_coeff):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, most=max_coeff, least=min_coeff))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                s = self.state[p]
                if not s:
                    s.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                s["t"] += 1
                s["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m, v = s["m"] / (1 - b1 ** s["t"]), s["v"] / (1 - b2 ** s["t"])
                r = m / (v.sqrt() + g["eps"]) + g["weight_decay"] * p
                ratio = (p.norm() / r.norm()).clamp(g["least"], g["most"])
                p.sub_(g["lr"] * ratio * r)


def run(make):
    values = {n: torch.nn.Parameter(v.clone()) for n, v in start().items()}
    opts = make(values)
    for step in range(1, STEPS + 1):
        for name, p in values.items():
            p.grad = grad(name, step)
        for o in opts:
            o.step()
    return {n: v.detach().flatten().tolist() for n, v in values.items()}


def every(make):
    return lambda v: [make(list(v.values()))]


def muon(**kw):
    def make(v):
        return [
            torch.optim.Muon([v["tall"], v["wide"]], lr=0.02, weight_decay=0.1, **kw),
            torch.optim.AdamW([v["vector"]], lr=0.02, weight_decay=0.1),
        ]

    return make


SGD = dict(lr=0.1, momentum=0.9, weight_decay=0.05)
CASES = {
    "adamw": every(lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1)),
    "adam_l2": every(lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1)),
    "lion": every(lambda p: Lion(p, 1e-2, (0.9, 0.99), 0.1)),
    "lamb": every(lambda p: Lamb(p, 1e-2, (0.9, 0.999), 1e-6, 0.1, 10.0, 0.01)),
    "lamb_clipped": every(lambda p: Lamb(p, 1e-2, (0.9, 0.999), 1e-6, 0.1, 0.5, 0.3)),
    "sgd": every(lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd_momentum": every(lambda p: torch.optim.SGD(p, **SGD)),
    "sgd_dampened": every(lambda p: torch.optim.SGD(p, **SGD, dampening=0.3)),
    "sgd_nesterov": every(lambda p: torch.optim.SGD(p, **SGD, nesterov=True)),
    "adafactor": every(lambda p: Adafactor(p)),
    "adafactor_warmup": every(lambda p: Adafactor(p, warmup_init=True, weight_decay=0.1, clip_threshold=0.7)),
    "adafactor_rate": every(lambda p: Adafactor(p, lr=1e-2, relative_step=False, scale_parameter=False, beta1=0.9, decay_rate=-0.7)),
    "muon": muon(),
    "muon_spectral": muon(adjust_lr_fn="match_rms_adamw", nesterov=False),
}


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(run(make))}" for name, make in CASES.items()]
    print("{\n" + ",\n".join(lines) + "\n}")
