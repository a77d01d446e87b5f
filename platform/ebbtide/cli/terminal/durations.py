"""How long something lasts or is past, in the one unit that a person would use."""

_MINUTES_FROM_S, _HOURS_FROM_S, _DAYS_FROM_S = 180, 3 * 3600, 3 * 86400


def lasting(duration_s: float) -> str:
    """Seconds up to three minutes, then minutes up to three hours, hours up to three days, days; never negative."""
    duration_s = max(0.0, duration_s)
    if duration_s < _MINUTES_FROM_S:
        return f"{duration_s:.0f} s"
    if duration_s < _HOURS_FROM_S:
        return f"{duration_s / 60:.0f} min"
    return f"{duration_s / 3600:.0f} h" if duration_s < _DAYS_FROM_S else f"{duration_s / 86400:.0f} d"


def latency(duration_s: float) -> str:
    """As short as a token's: ``-`` for none, milliseconds below a second."""
    if duration_s <= 0.0:
        return "-"
    if duration_s < 0.9995:
        return f"{1000 * duration_s:.0f} ms" if duration_s >= 0.0005 else "< 1 ms"
    return f"{duration_s:.3g} s"
