"""Draws Brax's bodies, spheres and capsules, without OpenGL, and makes the page of Brax's viewer.

The camera looks along a fixed direction, without perspective, and follows the first body.
"""

import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import envs
from jaxrl_dist.types import ArrayTree

_PLANE, _SPHERE, _CAPSULE = 0, 2, 3
_HEIGHT, _WIDTH = 240, 320
# Pictures are drawn this many times larger first, for smooth edges.
_SUPERSAMPLING = 2
_SKY, _FLOOR, _SHADOW = np.array((214, 226, 240)), np.array(((178, 186, 194), (200, 207, 214))), (140, 148, 158)
_OUTLINE = 0.55
_UNCHOSEN, _BROWN = ((0.5, 0.5, 0.5), (0.4, 0.33, 0.26)), (0.80, 0.55, 0.35)
_TILES = 14
# Height of the camera in degrees above the ground; it is higher for bodies that move parallel to the ground.
ELEVATION, _ELEVATIONS = 18.0, {"reacher": 70.0, "pusher": 40.0}
_AZIMUTH = -65.0
# Height of the picture as a multiple of the size of the body.
_MARGIN = 1.5


class Camera(NamedTuple):
    """Axes of the picture in the world: to the right, upwards, and towards the viewer, each f64 [3]."""

    right: np.ndarray
    up: np.ndarray
    forward: np.ndarray


def make(name: str, environment: Any) -> envs.Picture:
    """Makes the picture of a Brax environment.

    Args:
        name: name without that of the suite.
        environment: Brax's own.
    """
    bodies = _Bodies(environment.sys, camera(_ELEVATIONS.get(name, ELEVATION)))

    def draw(state: ArrayTree) -> np.ndarray:
        return bodies.draw(state.environment[0].pipeline_state.x)

    def page(states: Sequence[ArrayTree], frames_per_second: float) -> str:
        html: Any = importlib.import_module("brax.io.html")
        system = environment.sys.tree_replace({"opt.timestep": 1 / frames_per_second})
        return html.render(system, [state.environment[0].pipeline_state for state in states], colab=False)

    return envs.Picture(draw, 1.0 / float(environment.dt), page)


def camera(elevation: float) -> Camera:
    """Returns the axes of a camera so many degrees above the ground."""
    up, around = math.radians(elevation), math.radians(_AZIMUTH)
    forward = np.array((math.cos(up) * math.cos(around), math.cos(up) * math.sin(around), math.sin(up)))
    right = np.array((-math.sin(around), math.cos(around), 0.0))
    return Camera(right, np.cross(forward, right), forward)


class _Bodies:
    """The bodies of a system that are drawn: spheres and capsules, the latter as two ends with a radius."""

    def __init__(self, system: Any, camera: Camera) -> None:
        kinds = np.asarray(system.geom_type)
        shown = np.isin(kinds, (_SPHERE, _CAPSULE))
        size, half = np.asarray(system.geom_size)[shown], np.zeros((int(shown.sum()), 3))
        self._radius = size[:, 0]
        half[:, 2] = np.where(kinds[shown] == _CAPSULE, size[:, 1], 0.0)
        middle, rotation = np.asarray(system.geom_pos)[shown], np.asarray(system.geom_quat)[shown]
        ends = (middle + sign * _rotate(rotation, half) for sign in (-1, 1))
        # [2, G, 3], in the frame of the body that the end belongs to; body −1 is the world.
        self._ends = np.stack(list(ends))
        self._body = np.asarray(system.geom_bodyid)[shown] - 1
        self._colour = _colours(np.asarray(system.mj_model.geom_rgba)[shown])
        planes = np.asarray(system.geom_pos)[kinds == _PLANE]
        self._floor = float(planes[0, 2]) if len(planes) else None
        self._camera, self._scale, self._height = camera, 0.0, 0.0

    def draw(self, x: Any) -> np.ndarray:
        """Draws bodies at `x`, positions and rotations of the links, as u8 [H, W, 3]."""
        image_module: Any = importlib.import_module("PIL.Image")
        drawing_module: Any = importlib.import_module("PIL.ImageDraw")
        position = np.concatenate([np.asarray(x.pos, np.float64), np.zeros((1, 3))])
        rotation = np.concatenate([np.asarray(x.rot, np.float64), [[1.0, 0, 0, 0]]])
        ends = position[self._body] + np.stack([_rotate(rotation[self._body], end) for end in self._ends])
        centre = self._look_at(ends, position[0])
        size = (_WIDTH * _SUPERSAMPLING, _HEIGHT * _SUPERSAMPLING)
        image = image_module.new("RGB", size, tuple(_SKY.tolist()))
        canvas = drawing_module.Draw(image)
        if self._floor is not None:
            self._draw_floor(canvas, centre)
            shadows = np.concatenate([ends[..., :2], np.full((*ends.shape[:2], 1), self._floor)], axis=-1)
            for i in range(len(self._radius)):
                self._line(canvas, centre, shadows[:, i], self._radius[i], _SHADOW)
        for i in np.argsort((ends @ self._camera.forward).mean(0)):
            dark = tuple(int(_OUTLINE * c) for c in self._colour[i])
            self._line(canvas, centre, ends[:, i], self._radius[i], dark)
            self._line(
                canvas, centre, ends[:, i], self._radius[i] - 1.5 * _SUPERSAMPLING / self._scale, self._colour[i]
            )
        return np.asarray(image.reduce(_SUPERSAMPLING))

    def _look_at(self, ends: np.ndarray, root: np.ndarray) -> np.ndarray:
        """Returns the point in the middle of the picture; the first call also fixes the scale."""
        moving = ends[:, self._body >= 0]
        if not self._scale:
            extent = max(np.ptp(moving.reshape(-1, 3), axis=0).max(), 2 * self._radius.max())
            self._scale = _HEIGHT * _SUPERSAMPLING / (_MARGIN * float(extent))
            self._height = float(moving[..., 2].mean())
        return np.array([root[0], root[1], self._height])

    def _project(self, centre: np.ndarray, points: np.ndarray) -> list[tuple[float, float]]:
        """Returns where points [N, 3] lie in the picture."""
        relative = points - centre
        columns = _WIDTH * _SUPERSAMPLING / 2 + self._scale * (relative @ self._camera.right)
        rows = _HEIGHT * _SUPERSAMPLING / 2 - self._scale * (relative @ self._camera.up)
        return list(zip(columns.tolist(), rows.tolist(), strict=True))

    def _line(self, canvas: Any, centre: np.ndarray, ends: np.ndarray, radius: float, colour: Any) -> None:
        """Draws a capsule whose ends [2, 3] may be one point."""
        points, r = self._project(centre, ends), max(radius * self._scale, 1.0)
        canvas.line(points, fill=colour, width=round(2 * r))
        for column, row in points:
            canvas.ellipse((column - r, row - r, column + r, row + r), fill=colour)

    def _draw_floor(self, canvas: Any, centre: np.ndarray) -> None:
        """Draws chequered tiles around the middle of the picture, which fade into the sky."""
        tile = _HEIGHT * _SUPERSAMPLING / self._scale / 4
        first = np.floor(centre[:2] / tile).astype(int)
        for i in range(first[0] - _TILES, first[0] + _TILES + 1):
            for j in range(first[1] - _TILES, first[1] + _TILES + 1):
                corners = tile * np.array([(i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)])
                away = np.linalg.norm(corners.mean(0) - centre[:2]) / (tile * _TILES)
                if away < 1:
                    mixed = (1 - away**2) * _FLOOR[(i + j) % 2] + away**2 * _SKY
                    points = np.concatenate([corners, np.full((4, 1), self._floor)], axis=1)
                    canvas.polygon(self._project(centre, points), fill=tuple(mixed.astype(int).tolist()))


def _rotate(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotates vectors [N, 3] by unit quaternions [N, 4], real part first."""
    real, imaginary = quaternion[:, :1], quaternion[:, 1:]
    twice = 2 * np.cross(imaginary, vector)
    return vector + real * twice + np.cross(imaginary, twice)


def _colours(rgba: np.ndarray) -> list[tuple[int, ...]]:
    """Returns RGB in bytes; the defaults, MuJoCo's grey and Brax's brown, become a lighter brown."""
    unchosen = [np.abs(rgba[:, :3] - colour).max(1) < 1e-3 for colour in _UNCHOSEN]
    colours = np.where(np.any(unchosen, axis=0)[:, None], _BROWN, rgba[:, :3])
    return [tuple((255 * colour).astype(int).tolist()) for colour in colours]
