#!/usr/bin/env python3
"""Takes the two upper charts out of a report page, as one SVG file for the README.

    simulate run partition --seed 7 --report partition.html
    docs/images/from_report.py partition.html > docs/images/partition.svg
"""

import re
import sys

page = open(sys.argv[1], encoding="utf-8").read()

# The page's colors, those of a light screen: an image file has no page around it that could define them.
light = re.sub(r"@media \(prefers-color-scheme: dark\) \{.*?\n\}", "", page, flags=re.S)
colors = dict(re.findall(r"(--[\w-]+):\s*([^;]+);", light))


def resolved(text):
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colors[found.group(1)], text)


defs = re.search(r"<defs>.*?</defs>", page, re.S).group(0)
charts = re.findall(r'<svg role="img"[^>]*viewBox="0 0 (\d+) (\d+)"[^>]*>(.*?)</svg>', page, re.S)[:2]
drawn = defs + "".join(body for _, _, body in charts)
classes = {name for value in re.findall(r'class="([^"]+)"', drawn) for name in value.split()}
css = re.sub(r"/\*.*?\*/|@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}", "", "".join(re.findall(r"<style>(.*?)</style>", light, re.S)), flags=re.S)
rules = []
for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css):
    wanted = [one.strip().removeprefix("svg ") for one in selectors.split(",")]
    wanted = [
        one for one in wanted if re.fullmatch(r"(?:text(?:\[[^\]]*\])?|\w*\.[\w-]+)(?:\.[\w-]+)*", one) and set(re.findall(r"\.([\w-]+)", one)) <= classes
    ]
    if wanted:
        rules.append(f"{', '.join(wanted)} {{ {' '.join(resolved(body).split())} }}")

width, gap, top = int(charts[0][0]), 44, 26
heading = '<text class="heading" x="0" y="{}">{}</text>'
parts, y = [], top
for (_, height, body), title in zip(charts, ["Who was in which view", "Who owned what"]):
    body = re.sub(r"<title>.*?</title>", "", body, flags=re.S)
    parts += [heading.format(y - 10, title), f'<g transform="translate(0 {y})">{body}</g>']
    y += int(height) + gap
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 {width + 12} {y - gap + 12}" font-family="system-ui, sans-serif">')
print(f"<!-- {' '.join(sys.argv[1:])}: see from_report.py -->")
print(f"<style>{' '.join(rules)} .heading {{ font-size: 16px; font-weight: 650 }}</style>{defs}")
print(f'<rect x="-12" width="{width + 12}" height="{y - gap + 12}" fill="{colors["--paper"]}"/>')
print("\n".join(parts))
print("</svg>")
