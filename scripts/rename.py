#!/usr/bin/env python3
"""Renames words of the code, listed in scripts/renames.tsv: crate, kind, old, new, defining file.

    scripts/rename.py apply [CRATE ...]        rename, here, everything that still has its old name (all crates, or these)
    scripts/rename.py --check PARENT [CHILD]   commits differ in listed identifiers only (CHILD: the tree as it is)

To rebase an older branch, run `apply` on its last commit and on the commit it started at, then rebase.

Kinds: `file` (a module; paths within src, without .rs), `type` and `fn` (items of a module), `method` (the word after
a dot, `fn` or `::`, in the files named, comma-separated). Names are followed through `use`, globs and paths, from any
crate. Strings are never touched; comments only if they have a path in backticks or in a link.
"""

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    |(?P<string>b?r(?P<h>\#+)".*?"(?P=h)|b?r"[^"]*"|[bc]?"(?:\\.|[^"\\])*")
    |(?P<char>b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'])')
    |(?P<lifetime>'[A-Za-z_]\w*)
    |(?P<ident>(?:r\#)?[A-Za-z_]\w*)
    |(?P<number>\d[\w]*(?:\.\d[\w]*)?)
    |(?P<space>\s+)
    |(?P<punct>::|=>|->|\.\.=|\.\.|.)""",
    re.S | re.X,
)
PATH = re.compile(r"(?:crate|self|super|[A-Za-z_]\w*)(?:::[A-Za-z_]\w*)*")


def kind_of(m):
    return next(k for k in ("comment", "string", "char", "lifetime", "ident", "number", "space", "punct") if m.group(k))


def tokenize(text):
    out = []
    for m in TOKEN.finditer(text):
        out.append([kind_of(m), m.group()])
    assert "".join(t for _, t in out) == text
    return out


class Line:
    def __init__(self, row):
        self.crate, self.kind, self.old, self.new, self.file = row


def lines(crates=()):
    rows = []
    for text in (ROOT / "scripts/renames.tsv").read_text().splitlines():
        if text.strip() and not text.startswith("#"):
            row = text.split("\t")
            if len(row) == 4:
                row.append("")
            assert len(row) == 5, text
            if not crates or row[0] in crates:
                rows.append(Line(row))
    return rows


def source(crate):
    return ROOT / ("tests/src" if crate == "tests" else f"crates/{crate}/src")


class Module:
    def __init__(self, name, parent, file, folder):
        self.name, self.parent, self.file, self.folder = name, parent, file, folder
        self.children, self.imports, self.globs = {}, defaultdict(list), []
        self.defs = {"T": set(), "V": set()}
        self.root = parent.root if parent else self
        self.locals = set()


class World:
    """All targets of the workspace, as modules."""

    def __init__(self):
        self.crates, self.files, self.regions = {}, {}, {}
        self.spans = {}
        roots = []
        for lib in sorted(ROOT.glob("crates/*/src/lib.rs")):
            roots.append((lib.parent.parent.name, lib))
        roots.append(("tests", ROOT / "tests/src/lib.rs"))
        others = [*ROOT.glob("crates/*/src/main.rs"), *ROOT.glob("crates/*/src/bin/*.rs")]
        for folder in ("tests", "benches", "examples"):
            others += [*ROOT.glob(f"crates/*/{folder}/*.rs"), *ROOT.glob(f"crates/*/{folder}/*/main.rs")]
        others += [*ROOT.glob("crates/*/build.rs"), *ROOT.glob("tests/*.rs"), *ROOT.glob("tests/*/main.rs")]
        others += [*ROOT.glob("fuzz/*/*.rs")]
        roots += [(None, path) for path in sorted(others)]
        for name, path in roots:
            if path in self.files:
                continue
            module = Module(name, None, path, path.parent)
            if name:
                self.crates[name] = module
            self.load(module)

    def load(self, module):
        toks = tokenize(module.file.read_text())
        self.files[module.file] = toks
        self.regions[module.file] = regions = []  # (token index, module from here on)
        code = [i for i, t in enumerate(toks) if t[0] not in ("space", "comment")]
        text = lambda k: toks[code[k]][1] if 0 <= k < len(code) else ""
        stack, current, n, pending = [], module, 0, None
        skipped = set()  # variants, associated types
        enums = []
        regions.append((0, module))
        self.uses = getattr(self, "uses", {})
        self.uses[module.file] = uses = []
        while n < len(code):
            kind, word = toks[code[n]]
            at_module = all(s == "mod" for s in stack)
            if kind == "ident":
                before = text(n - 1)
                if word == "mod" and re.match(r"[A-Za-z_]", text(n + 1)):
                    name = text(n + 1)
                    if text(n + 2) == ";":
                        self.child(current, name)
                    elif text(n + 2) == "{":
                        child = Module(name, current, module.file, current.folder / name if current is not module
                                       else self.inner(module) / name)
                        current.children[name] = child
                        pending = child
                elif word == "use" and before in ("", ";", "}", "{", "]", ")", "pub"):
                    end = n
                    while text(end) != ";":
                        end += 1
                    self.use_tree(toks, code[n + 1:end], current)
                    uses.append((code[n], code[end], current))
                    n = end
                    continue
                elif word in ("struct", "enum", "union", "trait", "type", "fn", "const", "static") and before != ".":
                    name = text(n + 1)
                    if re.match(r"[A-Za-z_]", name) and name not in ("fn", "unsafe", "async", "extern"):
                        space = "V" if word in ("fn", "const", "static") else "T"
                        if name == "mut":
                            name = text(n + 2)
                        if at_module:
                            current.defs[space].add(name)
                            if word == "struct":
                                current.defs["V"].add(name)
                        else:
                            current.locals.add((space, name))
                            skipped.add(code[n + 1])
                            if word in ("struct", "enum"):
                                skipped.discard(code[n + 1])
                        if word == "enum":
                            pending = "enum"
            elif word in "{([":
                if word == "{" and isinstance(pending, Module):
                    stack.append("mod")
                    current, pending = pending, None
                    regions.append((code[n], current))
                elif word == "{" and pending == "enum":
                    stack.append("enum")
                    pending = None
                    self.variant(toks, code, n + 1, skipped)
                else:
                    stack.append(word)
            elif word in "})]":
                if stack:
                    top = stack.pop()
                    if top == "mod":
                        current = current.parent
                        regions.append((code[n] + 1, current))
            elif word == "," and stack and stack[-1] == "enum":
                self.variant(toks, code, n + 1, skipped)
            n += 1
        self.spans[module.file] = skipped

    def variant(self, toks, code, n, skipped):
        text = lambda k: toks[code[k]][1] if k < len(code) else ""
        while text(n) == "#":
            depth, n = 0, n + 1
            while True:
                depth += (text(n) == "[") - (text(n) == "]")
                n += 1
                if depth == 0:
                    break
        if n < len(code) and toks[code[n]][0] == "ident":
            skipped.add(code[n])

    def inner(self, module):
        if module.parent is None or module.file.name == "mod.rs":
            return module.file.parent
        return module.file.parent / module.file.stem

    def child(self, parent, name):
        folder = self.inner(parent) if parent.folder is None or parent.file_root() is parent else parent.folder
        for path in (folder / f"{name}.rs", folder / name / "mod.rs"):
            if path.exists():
                child = Module(name, parent, path, path.parent)
                parent.children[name] = child
                if path not in self.files:
                    self.load(child)
                return

    def use_tree(self, toks, span, module):
        def parse(k, prefix):
            path = list(prefix)
            while k < len(span):
                word = toks[span[k]][1]
                if word == "{":
                    k += 1
                    while toks[span[k]][1] != "}":
                        k = parse(k, path)
                        if toks[span[k]][1] == ",":
                            k += 1
                    return k + 1
                if word == "*":
                    module.globs.append(path)
                    return k + 1
                if word == "::":
                    k += 1
                    continue
                if word in (",", "}"):
                    return k
                if word == "as":
                    name = toks[span[k + 1]][1]
                    module.imports[name].append(path)
                    return k + 2
                if word == "$":
                    k += 1
                    continue
                path = path + [word] if word != "self" or not path else path
                after = toks[span[k + 1]][1] if k + 1 < len(span) else ","
                if after in (",", "}"):
                    module.imports[path[-1]].append(path)
                    return k + 1
                k += 1
            return k

        parse(0, [])

    # What a path names: ("mod", Module) or ("item", Module, name, space).
    def resolve(self, module, name, space, seen=None):
        seen = seen if seen is not None else set()
        key = (id(module), name, space)
        if key in seen:
            return None
        seen.add(key)
        if name in module.defs[space]:
            return ("item", module, name, space)
        if space == "T" and name in module.children:
            return ("mod", module.children[name])
        for path in module.imports.get(name, ()):
            found = self.resolve_path(module, path, space, seen, True)
            if found:
                return found
        for path in module.globs:
            target = self.resolve_path(module, path, "T", seen, True)
            if target and target[0] == "mod":
                found = self.resolve(target[1], name, space, seen)
                if found:
                    return found
        return None

    def first(self, module, word, space, seen, in_use=False):
        if word in ("crate",):
            return ("mod", module.root)
        if word == "self":
            return ("mod", module)
        if word == "super":
            return ("mod", module.parent) if module.parent else None
        found = self.resolve(module, word, space, seen)
        if found:
            return found
        if space == "T" and word in self.crates:
            return ("mod", self.crates[word])
        return None

    def resolve_path(self, module, path, space, seen=None, in_use=False):
        # A name that imports itself (`use x::x`) is looked up without its own import.
        fresh = set(seen) if seen else set()
        trail = self.trail(module, path, space, fresh)
        return trail[-1] if trail and len(trail) == len(path) else None

    def trail(self, module, path, space, seen=None):
        out, here = [], None
        for k, word in enumerate(path):
            last = k == len(path) - 1
            want = space if last else "T"
            if k == 0:
                here = self.first(module, word, want, set(seen or ()))
            elif word == "super":
                here = ("mod", here[1].parent) if here[0] == "mod" and here[1].parent else None
            elif word == "self":
                pass
            elif here[0] == "mod":
                here = self.resolve(here[1], word, want, set(seen or ()))
            else:
                break
            if here is None:
                break
            out.append(here)
        return out


def file_root(self):
    module = self
    while module.parent and module.parent.file == module.file:
        module = module.parent
    return module


Module.file_root = file_root


class Renamer:
    def __init__(self, world, rows):
        self.world, self.items, self.mods, self.methods, self.moves = world, {}, {}, [], []
        by_file = {}
        for path in world.files:
            by_file[path] = None
        for module in self.all_modules():
            if module.file_root() is module:
                by_file[module.file] = module
        self.by_file = by_file
        news = {(row.crate, row.old): row.new for row in rows if row.kind == "file"}
        for row in rows:
            base = source(row.crate)
            if row.kind == "file":
                path = next((p for p in (base / f"{row.old}.rs", base / row.old / "mod.rs") if p in by_file), None)
                if path is None:
                    continue
                self.mods[id(by_file[path])] = row.new.rsplit("/", 1)[-1]
                self.moves.append((base, row.old, row.new))
                continue
            if row.kind == "method":
                files = [base / f for f in row.file.split(",")]
                self.methods.append((row.old, row.new, files))
                continue
            file = row.file
            path = base / file
            if path not in by_file:
                stem = file[:-3]
                for (crate, old), new in news.items():
                    if crate == row.crate and (stem == old or stem.startswith(old + "/")):
                        path = base / (new + stem[len(old):] + ".rs")
            module = by_file.get(path)
            if module is None:
                print(f"no file: {row.crate} {row.file} ({row.old})")
                continue
            space = "V" if row.kind == "fn" else "T"
            if row.old not in module.defs[space]:
                if row.new not in module.defs[space]:
                    print(f"not defined: {row.crate} {row.file} {row.old}")
                continue
            self.items[(id(module), row.old, space)] = row.new
            if space == "T" and row.old in module.defs["V"]:
                self.items[(id(module), row.old, "V")] = row.new

    def all_modules(self):
        found, todo, seen = [], [*self.world.crates.values()], set()
        for regions in self.world.regions.values():
            todo += [m for _, m in regions]
        while todo:
            module = todo.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            found.append(module)
            todo += module.children.values()
        return found

    def new_name(self, found):
        if found[0] == "mod":
            return self.mods.get(id(found[1]))
        return self.items.get((id(found[1]), found[2], found[3]))

    def along(self, module, path):
        """New words for a path."""
        out = list(path)
        for space in ("T", "V"):
            for k, found in enumerate(self.world.trail(module, path, space)):
                if path[k] in ("crate", "self", "super"):
                    continue
                name = self.new_name(found)
                own = found[1].name if found[0] == "mod" else found[2]
                # An alias keeps its name.
                if name and own == path[k]:
                    out[k] = name
        return out

    def run(self):
        changed = {}
        for file, toks in self.world.files.items():
            new = self.rewrite(file, [list(t) for t in toks])
            text = "".join(t for _, t in new)
            if text != "".join(t for _, t in toks):
                changed[file] = text
        for conflict in sorted(set(self.conflicts())):
            print(conflict)
        for file, text in changed.items():
            file.write_text(text)
        # Deep ones first: a folder may move, too.
        for base, old, new in sorted(self.moves, key=lambda move: -move[1].count("/")):
            parent, last = old.rpartition("/")[0], new.rsplit("/", 1)[-1]
            here = base / parent
            name = old.rsplit("/", 1)[-1]
            for suffix in (".rs", ""):
                if (here / f"{name}{suffix}").exists():
                    subprocess.run(["git", "mv", here / f"{name}{suffix}", here / f"{last}{suffix}"], check=True)
        print(f"{len(changed)} files changed, {len(self.moves)} moved")

    def conflicts(self):
        for module in self.all_modules():
            names = {n for s in ("T", "V") for n in module.defs[s]} | set(module.imports) | set(module.children)
            for name in names:
                for space in ("T", "V"):
                    found = self.world.resolve(module, name, space)
                    new = found and self.new_name(found)
                    own = found and (found[1].name if found[0] == "mod" else found[2])
                    if new and own == name and new in names:
                        other = self.world.resolve(module, new, space)
                        elsewhere = self.world.resolve(module, new, "V" if space == "T" else "T")
                        is_free = other is None and elsewhere
                        if not is_free and not (other and (other[1:] == found[1:] or self.new_name(other))):
                            yield f"conflict: {module.file.relative_to(ROOT)}: {name} -> {new}, which is there"

    def rewrite(self, file, toks):
        regions, skipped = self.world.regions[file], self.world.spans[file]
        in_use = {}
        for start, end, module in self.world.uses[file]:
            for i in range(start, end + 1):
                in_use[i] = True
            self.rewrite_use(toks, start, end, module)
        module, pointer = regions[0][1], 1
        code = [i for i, t in enumerate(toks) if t[0] not in ("space", "comment")]
        at = {i: n for n, i in enumerate(code)}
        text = lambda k: toks[code[k]][1] if 0 <= k < len(code) else ""
        done = set()
        for i, (kind, word) in enumerate(toks):
            while pointer < len(regions) and regions[pointer][0] <= i:
                module, pointer = regions[pointer][1], pointer + 1
            if kind == "comment":
                toks[i][1] = self.rewrite_comment(word, module)
            if kind == "string" and i in at and text(at[i] - 2) == "debug_struct":
                toks[i][1] = f'"{self.along(module, [word[1:-1]])[0]}"'
            if kind != "ident" or i in done or i in in_use or i in skipped:
                continue
            n = at[i]
            if text(n - 1) == "mod" and text(n + 1) in (";", "{") and word in module.children:
                child = module.children.get(word)
                if child is not None and id(child) in self.mods:
                    toks[i][1] = self.mods[id(child)]
                continue
            if text(n - 1) == "." or (text(n - 1) == "::" and re.match(r"\w|>", text(n - 2)) and text(n - 2) != ">"):
                continue
            path, places, k = [word], [i], n
            while text(k + 1) == "::" and k + 2 < len(code) and toks[code[k + 2]][0] == "ident":
                path.append(text(k + 2))
                places.append(code[k + 2])
                k += 2
            if text(n - 1) == "::" and text(n - 2) == ">":
                continue
            # A binding, a field or a parameter, unless it is called.
            new = self.along(module, path)
            if len(path) == 1 and new[0] != word and word[0].islower():
                found = self.world.resolve(module, word, "V")
                named = found and self.new_name(found)
                is_called = text(n + 1) in ("(", "::")
                if not named or not is_called and self.is_bound(file, word):
                    continue
                new = [named]
            for place, name in zip(places, new):
                toks[place][1] = name
                done.add(place)
        for old, new, files in self.methods:
            if file in files:
                for n, i in enumerate(code):
                    if toks[i][1] == old and text(n - 1) in (".", "fn", "::"):
                        toks[i][1] = new
        return toks

    def is_bound(self, file, word):
        text = "".join(t for _, t in self.world.files[file])
        return re.search(rf"\b(?:let|for)\b[^=;]*\b{word}\b|\b{word}:|\|[^|]*\b{word}\b[^|]*\|", text)

    def rewrite_use(self, toks, start, end, module):
        span = [i for i in range(start + 1, end) if toks[i][0] not in ("space", "comment")]
        words = [toks[i][1] for i in span]

        def parse(k, prefix):
            path = list(prefix)
            while k < len(span):
                word = words[k]
                if word == "{":
                    k += 1
                    while words[k] != "}":
                        k = parse(k, path)
                        if words[k] == ",":
                            k += 1
                    return k + 1
                if word in ("*",):
                    return k + 1
                if word in (",", "}"):
                    return k
                if word in ("::", "$"):
                    k += 1
                    continue
                if word == "as":
                    if toks[span[k - 1]][1] == words[k + 1]:
                        for i in range(span[k - 1] + 1, span[k + 1] + 1):
                            toks[i][1] = ""
                    return k + 2
                path = path + [word]
                if word not in ("self", "super", "crate"):
                    plain = [w for j, w in enumerate(path) if w != "self" or j == 0]
                    toks[span[k]][1] = self.along(module, plain)[-1]
                k += 1
            return k

        parse(0, [])

    def rewrite_comment(self, text, module):
        def within(m):
            quoted = m.group()

            def path(p):
                words = p.group().split("::")
                new = self.along(module, words)
                if new == words:
                    return p.group()
                if len(words) == 1 and words[0][0].islower():
                    after = quoted[p.end():p.end() + 1]
                    bracket = text[m.start() - 1:m.start()] == "[" or quoted.startswith("](")
                    if not (bracket or (after == "(" and p.start() == 1)):
                        return p.group()
                return "::".join(new)

            return re.sub(r"(?<![\w.:/-])" + PATH.pattern, path, quoted)

        return re.sub(r"`[^`\n]+`|\]\([\w:]+\)|\]: [\w:]+$", within, text)


def shown(commit, path):
    if commit is None:
        file = ROOT / path
        return file.read_text() if file.exists() else None
    done = subprocess.run(["git", "show", f"{commit}:{path}"], capture_output=True, text=True, cwd=ROOT)
    return done.stdout if done.returncode == 0 else None


def streams(text):
    """The code in order but for `use` and `mod` items, which rustfmt sorts, and what it adds or drops."""
    toks = [(k, t) for k, t in map(tuple, tokenize(text)) if k not in ("space", "comment")]
    body, sorted_ones, n = [], [], 0
    while n < len(toks):
        word = toks[n][1]
        if word in ("use", "mod") and (n == 0 or toks[n - 1][1] in (";", "}", "{", "]", ")", "pub")):
            end = n
            while end < len(toks) and toks[end][1] not in (";",) and not (word == "mod" and toks[end][1] == "{"):
                end += 1
            if end < len(toks) and toks[end][1] == ";":
                # Its visibility and attributes go along.
                if body and body[-1] == ")":
                    while body and body[-1] != "pub":
                        sorted_ones.append(body.pop())
                if body and body[-1] == "pub":
                    sorted_ones.append(body.pop())
                while body and body[-1] == "]":
                    start = len(body) - 1
                    depth = 1
                    while depth:
                        start -= 1
                        depth += (body[start] == "]") - (body[start] == "[")
                    if start == 0 or body[start - 1] != "#":
                        break
                    sorted_ones += body[start:]
                    del body[start - 1:]
                sorted_ones += [t for k, t in toks[n:end] if k == "ident" or t == "*"]
                n = end + 1
                continue
        if word not in (",", "{", "}"):
            body.append(word)
        n += 1
    return body, Counter(sorted_ones)


def check(parent, child):
    listed = {(row.old.rsplit("/", 1)[-1], row.new.rsplit("/", 1)[-1]) for row in lines()}
    command = ["git", "diff", "--name-status", "-M30", parent] + ([child] if child else [])
    wrong, count = 0, 0
    for line in subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.splitlines():
        parts = line.split("\t")
        old, new = parts[1], parts[-1]
        if not new.endswith(".rs"):
            continue
        before, after = shown(parent, old), shown(child, new)
        if before is None or after is None:
            print(f"{new}: {line.split()[0]}: is not a rename")
            wrong += 1
            continue
        count += 1
        (body, uses), (new_body, new_uses) = streams(before), streams(after)
        pairs = ((a, b) for a, b in zip(body, new_body) if a != b)
        unlike = [(a, b) for a, b in pairs if (a.strip('"'), b.strip('"')) not in listed]
        if len(body) != len(new_body) or unlike:
            first = unlike[:1] or [f"{len(body)} tokens, then {len(new_body)}"]
            print(f"{new}: {first[0]}")
            wrong += 1
        gone, come = uses - new_uses, new_uses - uses
        for a, b in listed:
            pairs = min(gone[a], come[b])
            gone[a] -= pairs
            come[b] -= pairs
        # `Old as New` became `New`.
        aliases = gone.pop("as", 0)
        for word in [a for a, _ in listed for _ in range(gone[a])][:aliases]:
            gone[word] -= 1
        gone, come = +gone, +come
        if gone or come:
            print(f"{new}: imports: {dict(gone)} became {dict(come)}")
            wrong += 1
    print(f"{count} files compared, {wrong} differ otherwise")
    return wrong


def main(arguments):
    if arguments[:1] == ["apply"]:
        Renamer(World(), lines(set(arguments[1:]))).run()
    elif arguments[:1] == ["--check"] and len(arguments) in (2, 3):
        sys.exit(1 if check(arguments[1], arguments[2] if len(arguments) == 3 else None) else 0)
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
