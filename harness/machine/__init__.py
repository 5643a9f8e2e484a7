"""What a run computes on: its device, types and threads, and the ranks, alone or sharing one sharded model."""
