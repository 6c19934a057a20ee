"""The log of a process that serves."""

import logging

from jaxinfer.serving.config import ACCESS_LOG, ServerConfig


def start_log(options: ServerConfig) -> None:
    """Lines on standard error, from the level that the settings name."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=options.log_level.upper())
    if options.access_log:
        logging.getLogger(ACCESS_LOG).setLevel(logging.INFO)
