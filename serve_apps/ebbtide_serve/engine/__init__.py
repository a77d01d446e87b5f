"""The engine port, which an engine of one's own implements: requests, replies, sleep, and the report of a start.

``factory`` makes an engine by its name; nothing here knows one.
"""

from ebbtide_serve.engine.port import Engine, EngineSettings, EngineStats, JsonReply, Reply, Route, StreamReply
from ebbtide_serve.engine.sleep import CanSleep, Sleeps
from ebbtide_serve.engine.start_report import StartReport, TellsOfItsStart

__all__ = [
    "CanSleep",
    "Engine",
    "EngineSettings",
    "EngineStats",
    "JsonReply",
    "Reply",
    "Route",
    "Sleeps",
    "StartReport",
    "StreamReply",
    "TellsOfItsStart",
]
