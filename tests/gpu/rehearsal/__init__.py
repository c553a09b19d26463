"""FSDP2 on one GPU as rank 0 of many: real codecs and streams, and links that take as long as their bytes would."""
