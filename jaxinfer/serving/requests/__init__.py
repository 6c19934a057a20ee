"""From a request's body to engine requests, an endpoint at a time."""
