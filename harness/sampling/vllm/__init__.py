"""vLLM as the sampler: an engine in this process, or servers that take the policy's weights."""
