#!/usr/bin/env python3
"""GPT-2 of 124M parameters in bf16 on one GPU by PyTorch: the peer that `ci/gpu` measures against.

  python3 gpt2_on_gpu.py eager|compile

The same shapes, batch (8 sequences of 1,024 tokens), precision (bf16 by autocast, f32 weights), AdamW (fused) and tied head as ci/gpu trains.
Prints one JSON line: tokens a second, the median of six groups of five steps after ten warm-up steps.
"""
import torch, time, sys, json
import torch.nn as nn, torch.nn.functional as F
comp = sys.argv[1:] == ['compile']
torch.manual_seed(0); torch.set_float32_matmul_precision('high')
L, D, H, T, V, B = 12, 768, 12, 1024, 50304, 8
class Block(nn.Module):
    def __init__(s):
        super().__init__(); s.l1 = nn.LayerNorm(D); s.qkv = nn.Linear(D, 3 * D); s.o = nn.Linear(D, D); s.l2 = nn.LayerNorm(D); s.up = nn.Linear(D, 4 * D); s.down = nn.Linear(4 * D, D)
    def forward(s, x):
        q, k, v = (t.view(B, T, H, D // H).transpose(1, 2) for t in s.qkv(s.l1(x)).split(D, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + s.o(y)
        return x + s.down(F.gelu(s.up(s.l2(x)), approximate='tanh'))
class GPT(nn.Module):
    def __init__(s):
        super().__init__(); s.tok = nn.Embedding(V, D); s.pos = nn.Embedding(T, D); s.b = nn.ModuleList(Block() for _ in range(L)); s.ln = nn.LayerNorm(D); s.head = nn.Linear(D, V, bias=False); s.head.weight = s.tok.weight
        for p in s.parameters():
            if p.dim() > 1: nn.init.normal_(p, std=0.02)
    def forward(s, i, t):
        x = s.tok(i) + s.pos(torch.arange(T, device=i.device))
        for b in s.b: x = b(x)
        return F.cross_entropy(s.head(s.ln(x)).view(-1, V), t.view(-1))
m = GPT().cuda(); opt = torch.optim.AdamW(m.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
f = torch.compile(m) if comp else m
def step():
    x = torch.randint(0, 256, (B, T + 1), device='cuda')
    with torch.autocast('cuda', torch.bfloat16): loss = f(x[:, :-1].contiguous(), x[:, 1:].contiguous())
    loss.backward(); opt.step(); opt.zero_grad(set_to_none=True); return loss
for _ in range(10): step()
torch.cuda.synchronize(); ts = []
for _ in range(6):
    t = time.time()
    for _ in range(5): step()
    torch.cuda.synchronize(); ts.append((time.time() - t) / 5)
ts.sort(); print(json.dumps({'compile': comp, 'tokens_per_s': round(B * T / ts[len(ts) // 2]), 'peak_mb': torch.cuda.max_memory_allocated() >> 20}))
