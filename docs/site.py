"""Makes build/docs/site of the pages and of doxygen's build/docs/sdk. `./vernier docs` calls it in the root of the tree.

The navigation follows the indexes. Links to files that are not pages become plain text. A page lists the names of the
SDK, so that the search of the site finds them too.
"""
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree
from pathlib import Path

BUILD, PAGES, SDK = Path("build/docs"), Path("build/docs/pages"), "docs/reference/sdk.md"
INDEX = "docs/README.md"
LINK = re.compile(r"\[((?:`[^`]*`|[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def leads_to(page, target):
    return os.path.normpath(os.path.join(os.path.dirname(page), target))


def in_site(page, text, pages):
    """Returns a page with those of its links that lead out of the site as plain text."""
    def link(match):
        target = leads_to(page, match[2]) if match[2] else page
        if re.match("[a-z]+:", match[2]) or target in pages or target.endswith(".svg"):
            return match[0]
        if f"{target}/README.md" in pages:
            return f"[{match[1]}]({match[2].rstrip('/')}/README.md)"
        return match[1]
    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.M | re.S)
    return "".join(part if number % 2 else LINK.sub(link, part) for number, part in enumerate(parts))


def indented(text):
    """Returns a page with lists as MkDocs wants them: an item goes on at four blanks, where ours goes on below its
    first letter, and has a blank line before it, except after an item of one paragraph."""
    lines, width, is_code, is_long = [], 0, False, True
    for line in text.splitlines():
        is_code ^= line.lstrip().startswith("```")
        item = None if is_code else re.match(r"- |\d+\. ", line)
        if item:
            lines += [""] * (is_long and bool(lines and lines[-1]))
            width, is_long = len(item[0]), False
        elif line and not line.startswith(" ") and not is_code:
            width, is_long = 0, True
        is_long |= not line
        lines.append(" " * (4 - width) + line if width and line.startswith(" ") else line)
    return "\n".join(lines) + "\n"


def navigation(index, pages, seen):
    """Returns an index and the pages that it lists, in its order, below its headings."""
    seen.add(index)
    listed = [index]
    group = listed
    for line in pages[index].splitlines():
        if line.startswith("## "):
            group = []
            listed.append({line[3:]: group})
        for _, target, _ in LINK.findall(line) if line.startswith(("- ", "| [")) else ():
            page = leads_to(index, target)
            if page not in pages or page in seen:
                continue
            if page.endswith("/README.md") and page.startswith("docs/"):
                title = re.match("# (.*)", pages[page])[1]
                group.append({title: navigation(page, pages, seen)})
            else:
                seen.add(page)
                group.append(page)
    return [part for part in listed if not isinstance(part, dict) or [*part.values()][0]]


def names_of_sdk():
    """Returns a page with the classes and functions of each public header, and links to the reference."""
    compounds = xml.etree.ElementTree.parse(BUILD / "sdk.tag").getroot()
    members = {}
    for compound in compounds.iter("compound"):
        if compound.get("kind") in ("class", "struct"):
            names = dict.fromkeys(member.findtext("name") for member in compound.findall("member"))
            parts = [name for name in names if "~" not in name]
            members[compound.findtext("name")] = compound.findtext("filename"), parts
    page = ["# The SDK\n\nThe [reference](../../sdk/annotated.html) is made from the headers, which have these names.\n"]
    for header in sorted(compounds.iter("compound"), key=lambda compound: compound.findtext("name")):
        if header.get("kind") != "file":
            continue
        folder = header.findtext("path").split("/include/")[-1]
        page.append(f"## {folder}{header.findtext('name')}\n")
        page.append(f"[The header](../../sdk/{header.findtext('filename')})\n")
        for name in (each.text for each in header.findall("class")):
            file, parts = members.get(name, (None, ()))
            if file:
                parts = f": {', '.join(f'`{part}`' for part in parts)}" if parts else ""
                page.append(f"- [`{name.removeprefix('vernier::')}`](../../sdk/{file}){parts}")
        functions = {each.findtext("name"): each for each in header.findall("member")}
        for name, each in functions.items():
            page.append(f"- [`{name}`](../../sdk/{each.findtext('anchorfile')}#{each.findtext('anchor')})")
        page.append("")
    return "\n".join(page)


# A line of code has up to 120 characters. It is broken where it does not fit, instead of cut off.
STYLE = """.md-grid { max-width: 76rem }
.md-typeset pre > code { white-space: pre-wrap; overflow-wrap: anywhere }
"""


class Links(html.parser.HTMLParser):
    """The links of a page, and the places in it that others may lead to."""

    def __init__(self, page):
        super().__init__()
        self.links, self.places = [], {""}
        self.feed(page.read_text(encoding="utf-8", errors="replace"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.places.update(attributes[key] for key in ("id", "name") if attributes.get(key))
        self.links += [attributes[key] for key in ("href", "src") if attributes.get(key)]


def dead_links(site):
    """Returns the links of all pages that lead to no file, or to no place in it; of other sites it knows nothing.

    Doxygen links to places of its own pages that it does not write, and the page 404 is written for a server's root.
    """
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    dead = []
    for page, found in pages.items():
        for link in found.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            target = Path(os.path.normpath(page.parent / urllib.parse.unquote(parts.path))) if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            place = urllib.parse.unquote(parts.fragment)
            is_doxygens = (site / "sdk") in page.parents
            if not target.exists() or (target in pages and place not in pages[target].places and not is_doxygens):
                dead.append(f"{page.relative_to(site)}: {link}")
    return dead


def main():
    shutil.rmtree(PAGES, ignore_errors=True)
    found = [Path("README.md"), Path("tests/oracles/README.md"), *Path("docs").rglob("*.md"),
             *Path("examples").glob("*/README.md")]
    pages = {str(page): page.read_text(encoding="utf-8") for page in found}
    for page, text in pages.items():
        (PAGES / page).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / page).write_text(indented(in_site(page, text, pages)), encoding="utf-8")
    for picture in Path("docs").rglob("*.svg"):
        shutil.copy(picture, PAGES / picture)
    shutil.copytree(BUILD / "sdk", PAGES / "sdk")
    (PAGES / "wide.css").write_text(STYLE, encoding="utf-8")
    (PAGES / SDK).write_text(names_of_sdk(), encoding="utf-8")
    seen = {"README.md"}
    start, guides, reference, design, *others = navigation(INDEX, pages, seen)[1:]
    reference["Reference"].append({"SDK": SDK})
    settings = {
        "site_name": "Vernier",
        "docs_dir": "pages",
        "extra_css": ["wide.css"],
        "site_dir": "site",
        "nav": [{"Vernier": ["README.md", INDEX, *others]}, start, guides, reference, design],
        "not_in_nav": "tests/",
        "theme": {
            "name": "material",
            "font": False,
            "palette": [{"media": f"(prefers-color-scheme: {scheme})", "scheme": name}
                        for scheme, name in (("light", "default"), ("dark", "slate"))],
            "features": ["navigation.tabs", "navigation.indexes", "navigation.top", "search.highlight",
                         "content.code.copy"],
        },
        "plugins": ["search", "offline"],
        "markdown_extensions": ["tables", "sane_lists", "pymdownx.highlight", "pymdownx.superfences",
                                {"toc": {"permalink": True}}],
        "validation": dict.fromkeys(("omitted_files", "anchors", "unrecognized_links", "absolute_links"), "warn"),
    }
    (BUILD / "mkdocs.yml").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--config-file", BUILD / "mkdocs.yml"]
    status = subprocess.run(command, check=False).returncode
    if status == 0:
        dead = dead_links(BUILD / "site")
        print(*dead, sep="\n", end="\n" if dead else "", file=sys.stderr)
        status = bool(dead)
    return status


if __name__ == "__main__":
    sys.exit(main())
