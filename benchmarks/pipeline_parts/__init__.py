"""The two forms of a pipeline that `pipeline_forms.py` compares, and the model and the microbatches that both run."""
