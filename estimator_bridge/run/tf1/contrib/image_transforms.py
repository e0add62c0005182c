"""Projective transformations of images: output pixel (x, y) copies input pixel (x', y').

    x', y' = (a0 x + a1 y + a2) / k, (b0 x + b1 y + b2) / k, with k = c0 x + c1 y + 1

A transformation is [a0, a1, a2, b0, b1, b2, c0, c1].
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Tensor, TensorLike


def transform(
    images: TensorLike,
    transforms: TensorLike,
    interpolation: str = "NEAREST",
    output_shape: TensorLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Transforms images; pixels from outside the image are zero.

    Args:
        images: [batch, height, width, channels], [height, width, channels] or [height, width].
        transforms: [8], or [batch, 8].
        interpolation: "NEAREST" or "BILINEAR".
        output_shape: the new height and width; None keeps the old ones.
    """
    with tf.name_scope(name, "transform"):
        images = tf.convert_to_tensor(images)
        to_batch = {2: (None, ..., None), 3: (None,), 4: ()}.get(images.shape.rank)
        if to_batch is None:
            raise errors.InvalidInput(f"images: the rank must be 2, 3 or 4, got {images.shape}.")
        batch = images[to_batch]
        transforms = tf.cast(transforms, tf.float32)
        output = tf.raw_ops.ImageProjectiveTransformV2(
            images=batch,
            transforms=transforms[None] if transforms.shape.rank == 1 else transforms,
            output_shape=tf.shape(batch)[1:3] if output_shape is None else output_shape,
            interpolation=interpolation.upper(),
        )
        return output[tuple(each if each is ... else 0 for each in to_batch)]


def rotate(
    images: TensorLike, angles: TensorLike, interpolation: str = "NEAREST", name: str | None = None
) -> Tensor:
    """Rotates images counter-clockwise around their centers, by one angle or one per image."""
    with tf.name_scope(name, "rotate"):
        images = tf.convert_to_tensor(images)
        rows = 0 if images.shape.rank in (2, 3) else 1
        height, width = (tf.cast(tf.shape(images)[rows + axis], tf.float32) for axis in (0, 1))
        transforms = angles_to_projective_transforms(angles, height, width)
        return transform(images, transforms, interpolation)


def translate(
    images: TensorLike,
    translations: TensorLike,
    interpolation: str = "NEAREST",
    name: str | None = None,
) -> Tensor:
    """Moves images by [dx, dy] pixels: one pair for all images, or one per image."""
    with tf.name_scope(name, "translate"):
        return transform(images, translations_to_projective_transforms(translations), interpolation)


def angles_to_projective_transforms(
    angles: TensorLike, image_height: TensorLike, image_width: TensorLike, name: str | None = None
) -> Tensor:
    with tf.name_scope(name, "angles_to_projective_transforms"):
        angles = tf.reshape(tf.cast(angles, tf.float32), [-1])
        x, y = image_width - 1, image_height - 1
        sin, cos = tf.sin(angles), tf.cos(angles)
        right = (x - (cos * x - sin * y)) / 2.0
        down = (y - (sin * x + cos * y)) / 2.0
        zero = tf.zeros_like(angles)
        return tf.stack([cos, -sin, right, sin, cos, down, zero, zero], 1)


def translations_to_projective_transforms(
    translations: TensorLike, name: str | None = None
) -> Tensor:
    with tf.name_scope(name, "translations_to_projective_transforms"):
        dx, dy = tf.unstack(tf.reshape(tf.cast(translations, tf.float32), [-1, 2]), axis=1)
        one, zero = tf.ones_like(dx), tf.zeros_like(dx)
        return tf.stack([one, zero, -dx, zero, one, -dy, zero, zero], 1)


def compose_transforms(*transforms: TensorLike) -> Tensor:
    product = flat_transforms_to_matrices(transforms[0])
    for each in transforms[1:]:
        product = tf.matmul(product, flat_transforms_to_matrices(each))
    return matrices_to_flat_transforms(product)


def flat_transforms_to_matrices(transforms: TensorLike) -> Tensor:
    flat = tf.reshape(tf.cast(transforms, tf.float32), [-1, 8])
    return tf.reshape(tf.concat([flat, tf.ones_like(flat[:, :1])], 1), [-1, 3, 3])


def matrices_to_flat_transforms(transform_matrices: TensorLike) -> Tensor:
    """Converts 3 × 3 matrices to flat transformations, scaled so that the last element is 1."""
    flat = tf.reshape(tf.cast(transform_matrices, tf.float32), [-1, 9])
    return (flat / flat[:, 8:])[:, :8]
