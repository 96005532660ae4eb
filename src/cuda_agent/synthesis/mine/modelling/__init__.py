"""Seeds from transformers: classes of its modelling files, specialised to plain arguments and tried."""
