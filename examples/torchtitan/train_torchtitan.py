"""Starts torchtitan's trainer on Isthmus, with torchtitan's own options: see README.md beside this file.

torchtitan has no setting for the backend: it asks torch which one belongs to the device.
"""

import torch.distributed as dist
from torchtitan.tools.utils import device_type
from torchtitan.train import main

if __name__ == "__main__":
    dist.Backend.default_device_backend_map[device_type] = "isthmus"
    main()
