"""How both ends of the engine's seam speak gRPC."""

KEY_NAME = "jaxinfer-engine-key"
"""Of the metadata that carries an engine's key."""

_MOST_BYTES = 256 * 2**20

OPTIONS = (
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.max_receive_message_length", _MOST_BYTES),
    # A host that vanishes without a word is noticed within seconds.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
    # One engine an address: a second must not be able to listen beside it.
    ("grpc.so_reuseport", 0),
    # An engine that was started again is to be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
