"""The probabilities that transformers draws tokens with.

    python sampling.py > sampling.json     # transformers 5.23.0, torch 2.15.0
"""

import json

import torch
import transformers
from transformers.generation import logits_process as lp

torch.manual_seed(7)
SETTINGS = [
    dict(temperature=1.0),
    dict(temperature=0.6, top_k=20, top_p=0.95),
    dict(temperature=1.7, top_k=3),
    dict(temperature=0.8, top_p=0.5),
    dict(temperature=1.3, min_p=0.1),
    dict(temperature=0.9, top_k=12, top_p=0.8, min_p=0.3, repetition_penalty=1.3),
    dict(temperature=1.0, top_k=1),
    dict(temperature=1.0, top_p=1e-6),
    dict(temperature=1.1, repetition_penalty=0.7),
]

cases = []
for settings in SETTINGS:
    logits = (3 * torch.randn(1, 40)).float()
    seen = torch.randint(0, 40, (1, 9))
    processors = lp.LogitsProcessorList()
    if "repetition_penalty" in settings:
        processors.append(lp.RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    processors.append(lp.TemperatureLogitsWarper(settings["temperature"]))
    for name, warper in dict(top_k=lp.TopKLogitsWarper, top_p=lp.TopPLogitsWarper, min_p=lp.MinPLogitsWarper).items():
        if name in settings:
            processors.append(warper(settings[name]))
    probabilities = processors(seen, logits.clone()).double().softmax(-1)
    cases.append(dict(settings=settings, logits=logits[0].tolist(), seen=seen[0].tolist(), probabilities=probabilities[0].tolist()))
print(json.dumps(dict(transformers=transformers.__version__, torch=torch.__version__, cases=cases)))
