//! Artificial pictures, by which the channels of a scattering transform are scaled to equal
//! strength.
//!
//! Ellipses of random brightness, size, shape and direction fall on a dark or grey ground, each
//! hiding what lies below ("dead leaves", the usual model of why pictures have edges and surfaces).
//! Radii follow `P(r > x) = x^-2` from 1 pixel up, and end at half the side. They come from a
//! public seed that never changes: no record, and no choice of a user, is in them.

use chacha20::ChaCha8Rng;

use super::super::super::public_random::{below, generator, open_unit};

/// One of the pictures, `side x side` numbers in [0, 1].
pub(super) fn picture(side: usize, random: &mut ChaCha8Rng) -> Vec<f32> {
    let ground = if open_unit(random) < 0.5 {
        0.0
    } else {
        open_unit(random)
    };
    let mut pixels = vec![ground as f32; side * side];
    // 3 to 29 on the area of 28 x 28 pixels.
    let area = (side * side) as f64 / 784.0;
    let leaves = (area * (3 + below(random, 27)) as f64).ceil() as usize;
    for _ in 0..leaves {
        let radius = (1.0 / libm::sqrt(open_unit(random))).min(side as f64 / 2.0);
        let (x, y) = (
            open_unit(random) * side as f64,
            open_unit(random) * side as f64,
        );
        let angle = open_unit(random) * std::f64::consts::PI;
        let length = 0.15 + 0.85 * open_unit(random);
        let light = if open_unit(random) < 0.7 {
            open_unit(random)
        } else {
            0.0
        };
        let (cosine, sine) = (libm::cos(angle), libm::sin(angle));
        for (place, pixel) in pixels.iter_mut().enumerate() {
            let (dx, dy) = ((place % side) as f64 - x, (place / side) as f64 - y);
            let along = (dx * cosine + dy * sine) * length;
            let across = dy * cosine - dx * sine;
            let cover =
                (1.0 + radius - libm::sqrt(along * along + across * across)).clamp(0.0, 1.0);
            *pixel = ((1.0 - cover) * f64::from(*pixel) + cover * light) as f32;
        }
    }
    pixels
}

/// The stream of pictures.
pub(super) fn stream() -> ChaCha8Rng {
    generator("scattering pictures", 0)
}
