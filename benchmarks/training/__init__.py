"""`isthmus bench training`: a GPT under FSDP2 over a slow link, plain and compressed side by side."""
