"""What every command shares: exit codes, one outer handler, progress. It knows no network."""

from paramsym.terminal.exits import EPILOG as EPILOG
from paramsym.terminal.exits import MEANINGS as MEANINGS
from paramsym.terminal.exits import ExitCode as ExitCode
from paramsym.terminal.failures import Failure as Failure
from paramsym.terminal.failures import failure_of as failure_of
from paramsym.terminal.failures import four_parts as four_parts
from paramsym.terminal.guard import guarded as guarded
from paramsym.terminal.pipes import unbroken_pipes as unbroken_pipes
from paramsym.terminal.progress import Progress as Progress
from paramsym.terminal.progress import silent as silent
