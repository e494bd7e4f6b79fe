"""The OpenAI API over the data plane: request schemas, translation both ways, nothing else."""
