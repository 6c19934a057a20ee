"""From a request's body to prompts and sampling parameters, an endpoint at a time."""
