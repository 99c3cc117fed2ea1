"""Other people's formats: checkpoints and configs of Hugging Face."""
