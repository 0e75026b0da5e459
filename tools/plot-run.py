#!/usr/bin/env python3
"""Draws the loss curves of runs as one SVG, from their metrics.jsonl.

    tools/plot-run.py runs/gpt-1 runs/gpt-2 -o curves.svg
"""
import argparse
import json
import pathlib

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 48
COLOURS = ["#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed"]


def read(run):
    losses, held_out = [], []
    for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("format") == "trireme-metrics" and record["version"] > 1:
            raise SystemExit(f"{run}/metrics.jsonl was made by a newer Trireme: use that one's plot-run.py")
        if record.get("loss") is not None:
            losses.append((record["step"], record["loss"]))
        if record.get("eval_loss") is not None:
            held_out.append((record["step"], record["eval_loss"]))
    return losses, held_out


def nice_steps(low, high, count):
    raw = (high - low) / count
    magnitude = 10 ** len(str(int(1 / raw))) if raw < 1 else 1 / 10 ** (len(str(int(raw))) - 1)
    for factor in (1, 2, 5, 10):
        step = factor / magnitude
        if step >= raw:
            break
    value = step * int(low / step + (low > 0))
    while value <= high + 1e-9:
        yield value
        value += step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--title", default="Loss by step")
    args = parser.parse_args()
    curves = [(pathlib.Path(run).name, *read(run)) for run in args.runs]
    last = max(step for _, losses, _ in curves for step, _ in losses)
    values = [loss for _, losses, _ in curves for _, loss in losses]
    low, high = min(values) - 0.1, max(values) + 0.1
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / last
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">{args.title}</text>']
    for value in nice_steps(low, high, 6):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#374151">{value:g}</text>')
    for value in nice_steps(0, last, 6):
        out.append(f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#374151">{value:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle" fill="#374151">step</text>')
    for number, (name, losses, held_out) in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in losses)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-opacity="0.85"/>')
        for step, loss in held_out:
            out.append(f'<circle cx="{x(step):.1f}" cy="{y(loss):.1f}" r="4" fill="{colour}"/>')
        legend = TOP + 14 + 18 * number
        out.append(f'<line x1="{WIDTH - 230}" x2="{WIDTH - 206}" y1="{legend - 4}" y2="{legend - 4}" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - 200}" y="{legend}">{name}{" (dots: held-out)" if held_out else ""}</text>')
    out.append("</svg>")
    pathlib.Path(args.output).write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
