"""Private names of torch, which nothing else reads. "Instead" is the public hook that would take a section's place.

A backend sees a tensor and an operation. To compress gradients alone, and to keep what a step has not sent for the next
one, Isthmus must know which parameters a collective moves. Public hooks help: `set_custom_reduce_scatter` and
`set_custom_all_gather` of FSDPModule, `set_reduce_scatter_max_input_buffers`, DDP's `register_comm_hook`. What they
lack: the collective is not told its unit or its parameters; torch 2.15 refuses custom collectives where a module has
several units; the stream on which its input was written is not passed, only the one that waits for the unit before.

C++ reads labels of FSDP, `AccumulateGrad` and the current graph task (src/torch/units/gradient_labels.cpp).
"""
