"""The plot of `bench_scaling.py`, as SVG: the work of n workers in multiples of one worker's, beside what is ideal."""

from __future__ import annotations

from collections.abc import Mapping

WIDTH, HEIGHT, MARGIN = 480, 320, 48  # pixels


def scaling_plot(efficiency: Mapping[int, float], bound: float) -> str:
    """`efficiency`: by number of workers. Dashed: ideal. Dotted: the bound."""
    most = max(efficiency)

    def x(workers: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * workers / most

    def y(work: float) -> float:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * work / most

    def line(points: list[tuple[float, float]], look: str) -> str:
        placed = " ".join(f"{x(workers):.1f},{y(work):.1f}" for workers, work in points)
        return f'<polyline points="{placed}" fill="none" {look}/>'

    def text(at: tuple[float, float], words: str, anchor: str = "middle") -> str:
        return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}">{words}</text>'

    grey, teal = 'stroke="#888"', 'stroke="#00796b" stroke-width="2"'
    drawn = [
        line([(0, most), (0, 0), (most, 0)], grey),
        line([(0, 0), (most, most)], f'{grey} stroke-dasharray="6 4"'),
        line([(0, 0), (most, bound * most)], f'{grey} stroke-dasharray="2 4"'),
        line([(workers, workers * found) for workers, found in efficiency.items()], teal),
    ]
    for workers, found in efficiency.items():
        at = x(workers), y(workers * found)
        drawn.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" fill="#00796b"/>')
        drawn.append(text((at[0] + 8, at[1] + 16), f"{found:.1%}", "start"))
        drawn.append(text((x(workers), HEIGHT - MARGIN + 18), str(workers)))
        drawn.append(text((MARGIN - 8, y(workers) + 4), str(workers), "end"))
    drawn.append(text((WIDTH / 2, HEIGHT - 10), "workers"))
    drawn.append(text((MARGIN, 24), f"work per second, of one worker's; dashed: ideal, dotted: {bound:.0%}", "start"))
    style = 'font-family="sans-serif" font-size="12" fill="#888"'
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    body = "\n".join(drawn)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'
