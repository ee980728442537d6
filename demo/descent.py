"""A training script as anybody writes it: `paramsym watch` runs it, and keeps its ledger."""

import torch
from digits import digits, initialised

images, labels, _, _ = digits()
model = initialised(3)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
for _ in range(100):
    optimiser.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimiser.step()
print(f"loss {loss.item():.3f}")
