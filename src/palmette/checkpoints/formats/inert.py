"""Pickles read without calling anything: every object but plain data stays a note of what the file asks for.

A pickle is a program. Python's own machine allocates, hashes and recurses as the program says. This one builds
lists, dicts and tuples only: time and memory are proportional to the bytes of the program.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Name:
    """A function or class that a pickle names, such as "torch.FloatStorage"."""

    text: str


@dataclass(eq=False)
class Call:
    """A call that a pickle asks for, and the state that it gives to the result."""

    name: str
    args: tuple[Any, ...]
    state: Any = None


@dataclass(eq=False)
class Persistent:
    """An object outside of the pickle, such as the values of a tensor."""

    id: Any


_MARK = object()
_DICTS = ("collections.OrderedDict", "builtins.dict")
_OTHER = ("PERSID", "INST", "EXT1", "EXT2", "EXT4")  # instructions with text or a number that is no value
_PLAIN = str | bytes | int | float | None
_LONGEST_KEY = 8  # parts
_LONGEST_NAME = 1000  # letters


def read_inert(file: Any, why_not: Callable[[str], str], persistent: Callable[[Any], Any] = Persistent) -> Any:
    """Value of the pickle at the position of `file`; leaves it at its end. A set becomes a list.

    Args:
        file: a memory map, or bytes in memory: a file on disk allocates what a read asks for, there or not.
        why_not: why a name such as "torch.FloatStorage" must not occur; empty if it may.
        persistent: what stands for an object outside of the pickle, given its id.
    """
    machine = _Machine(why_not, persistent)
    try:
        for op, arg, place in pickletools.genops(file):
            if op.name == "STOP":
                return machine.pop()
            machine.step(op.name, arg)
            if machine.copied > (place or 0):
                raise ValueError("it copies the same values again and again")
    except (IndexError, KeyError) as error:
        raise ValueError("it reads a value that it never stored") from error
    raise ValueError("it has no end")


class _Machine:
    def __init__(self, why_not: Callable[[str], str], persistent: Callable[[Any], Any]) -> None:
        self.why_not, self.persistent = why_not, persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0  # letters and pairs

    def step(self, op: str, arg: Any) -> None:
        """One instruction."""
        stack, memo = self.stack, self.memo
        match op:
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                memo[int(arg)] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET" | "GET":
                stack.append(memo[int(arg)])
            case "MARK":
                stack.append(_MARK)
            case "EMPTY_DICT" | "DICT":
                items = self.pop_marked() if op == "DICT" else []
                stack.append(_filled({}, items))
            case "EMPTY_LIST" | "EMPTY_SET":
                stack.append([])
            case "LIST" | "FROZENSET":
                stack.append(self.pop_marked())
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self.pop() for _ in range(int(op[-1])))[::-1])
            case "TUPLE":
                stack.append(tuple(self.pop_marked()))
            case "APPEND" | "APPENDS" | "ADDITEMS":
                items = [self.pop()] if op == "APPEND" else self.pop_marked()
                if isinstance(stack[-1], list):
                    stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = [self.pop(), self.pop()][::-1] if op == "SETITEM" else self.pop_marked()
                if isinstance(stack[-1], dict):
                    _filled(stack[-1], items)
            case "GLOBAL":
                stack.append(self.named(*arg.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = self.pop(), self.pop()
                stack.append(self.named(module, name))
            case "REDUCE" | "NEWOBJ":
                args, what = self.pop(), self.pop()
                stack.append(self.called(what, args))
            case "BUILD":
                state = self.pop()
                if isinstance(stack[-1], Call):
                    stack[-1].state = state
            case "BINPERSID":
                stack.append(self.persistent(self.pop()))
            case "POP":
                stack.pop()
            case "POP_MARK":
                self.pop_marked()
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[op])
            case "BINSTRING" | "SHORT_BINSTRING" | "STRING":  # of Python 2: text or bytes, nobody knows
                stack.append(arg.encode("latin-1"))
            case "PROTO" | "FRAME":
                pass
            case _ if isinstance(arg, _PLAIN | bytearray) and op not in _OTHER and arg is not None:
                stack.append(arg)
            case _:
                raise ValueError(f"it has the instruction {op}, which plain data does not need")

    def pop(self) -> Any:
        """Take one value."""
        if self.stack[-1] is _MARK:
            raise IndexError
        return self.stack.pop()

    def pop_marked(self) -> list[Any]:
        """Take everything above the last mark, and the mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def named(self, module: Any, name: Any) -> Name:
        """The name of a function or class."""
        if not (isinstance(module, str) and isinstance(name, str) and len(module) + len(name) < _LONGEST_NAME):
            raise ValueError("it asks for something without a name")
        text = f"{'builtins' if module == '__builtin__' else module}.{name}"  # as Python 2 calls it
        if why := self.why_not(text):
            raise ValueError(why)
        return Name(text)

    def called(self, what: Any, args: Any) -> Any:
        """Result of a call: a dict, bytes, or a note of it."""
        if not (isinstance(what, Name) and isinstance(args, tuple)):
            raise ValueError("it calls something that is not a function")
        if what.text == "_codecs.encode":  # how Python 3 writes bytes in an old protocol
            if not (isinstance(args[0], str) and (len(args) == 1 or args[1] in ("latin1", b"latin1"))):
                raise ValueError("only text can be encoded, as latin1")
            self.copied += len(args[0])
            return args[0].encode("latin1")
        if what.text not in _DICTS:
            return Call(what.text, args)
        pairs = args[0] if args and isinstance(args[0], list) else []
        self.copied += len(pairs)
        found: dict[Any, Any] = {}
        for pair in pairs:
            _filled(found, list(pair) if isinstance(pair, list | tuple) and len(pair) == 2 else [])
        return found


def _filled(into: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    """Add keys and values to a dict; other keys than plain values and short tuples of them lead to no weight."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) <= _LONGEST_KEY and all(map(_is_plain, parts)):
            into[key] = value
    return into


def _is_plain(key: Any) -> bool:
    # Python hashes a longer number anew each time, and many of them alike.
    return isinstance(key, _PLAIN) and not (isinstance(key, int) and key.bit_length() > 63)
