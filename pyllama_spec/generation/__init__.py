"""From a request to text: options, prompts, chat templates, and the tokens that come back."""
