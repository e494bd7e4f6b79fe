"""What a model's matrices are multiplied with, measured by running a little text through it."""
