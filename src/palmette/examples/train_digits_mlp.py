"""How `digits-mlp.safetensors` was made: the paper's MLP, trained on the UCI digits with the paper's recipe.

Run it with scikit-learn installed, from which it takes the 1,797 images: `python train_digits_mlp.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn


def main() -> None:
    """Train for 200 epochs and write the weights beside this file."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    images, labels = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    images = (images.float() - 4.88) / 6.02
    order = torch.randperm(len(images))
    train, test = order[:1500], order[1500:]
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    for _ in range(200):
        for batch in train[torch.randperm(len(train))].split(250):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
    accuracy = float((model(images[test]).argmax(1) == labels[test]).float().mean())
    save_file(
        model.state_dict(),
        Path(__file__).with_name("digits-mlp.safetensors"),
        {"about": f"MLP 64-128-256-10 on the UCI digits, 200 epochs, test accuracy {accuracy:.4f}"},
    )
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
