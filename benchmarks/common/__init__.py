"""Shared by benchmarks: model, data, groups of Isthmus, recorded collectives, facts about the machine."""
