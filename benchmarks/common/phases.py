"""The phases that a training step is split into, and which collective belongs to which."""

#: How FSDP2 calls torch.distributed, and which collective that is. It uses the names with "single" from some torch
#: between 2.11 and 2.15 on.
KIND_OF = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_reduce": "all_reduce",
}
#: The phase of a step that a collective is booked under. HSDP's all-reduce between nodes finishes what the
#: reduce-scatter in the node began: both are the reduction of gradients.
PHASE_OF_KIND = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_reduce": "reduce_scatter"}
COMMUNICATION_PHASES = ("all_gather", "reduce_scatter")
PHASES = ("compute", *COMMUNICATION_PHASES)
#: In place of all phases, where they cannot be told apart.
WHOLE_STEP = "step"
