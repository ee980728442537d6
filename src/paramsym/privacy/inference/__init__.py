"""Obfuscated inference: a model owner and a data owner, each with a key for one session.

`protocol` has the three steps and says what they do not hide; `server` and `client` carry them
over HTTP.
"""

from .messages import Message as Message
from .messages import Refusal as Refusal
from .polarity import Polarity as Polarity
from .protocol import DataOwner as DataOwner
from .protocol import Evaluator as Evaluator
from .protocol import ModelOwner as ModelOwner
from .protocol import Session as Session
