"""Parts of the benchmarks of structured output."""
