//! Figures as pictures: our own SVG, rasterised.
//!
//! The font travels with the program (`third-party/dejavu`), and no other font is looked at, so the
//! same figure gives the same bytes on every machine.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, fontdb};

const REGULAR: &[u8] = include_bytes!("../../../../third-party/dejavu/DejaVuSans.ttf");
const BOLD: &[u8] = include_bytes!("../../../../third-party/dejavu/DejaVuSans-Bold.ttf");

static FONTS: LazyLock<Arc<fontdb::Database>> = LazyLock::new(|| {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(REGULAR.to_vec());
    fonts.load_font_data(BOLD.to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    Arc::new(fonts)
});

/// Why a figure has no picture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// The text is not an SVG that can be drawn.
    #[error("the figure cannot be drawn: {0}")]
    Svg(#[from] usvg::Error),
    /// Too large, or the bytes cannot be written.
    #[error("a picture of {width} x {height} pixels cannot be made")]
    Size {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
    },
}

/// The picture of an SVG, `scale` pixels for each of its units.
pub(super) fn rasterise(svg: &str, scale: f32) -> Result<Vec<u8>, PictureError> {
    let options = usvg::Options {
        fontdb: Arc::clone(&FONTS),
        ..usvg::Options::default()
    };
    let tree = usvg::Tree::from_str(svg, &options)?;
    let size = tree.size();
    let (width, height) = (
        (size.width() * scale).ceil() as u32,
        (size.height() * scale).ceil() as u32,
    );
    let mut pixels = Pixmap::new(width, height).ok_or(PictureError::Size { width, height })?;
    resvg::render(
        &tree,
        Transform::from_scale(scale, scale),
        &mut pixels.as_mut(),
    );
    pixels
        .encode_png()
        .map_err(|_| PictureError::Size { width, height })
}

#[cfg(test)]
mod tests {
    use crate::report::{Figure, Panel, Series};

    /// Text must be there: with a font that is not found, nothing at all would be drawn for it.
    #[test]
    fn lines_and_text_leave_ink() {
        let figure = |title: &str| Figure {
            title: title.to_owned(),
            panels: vec![Panel {
                series: vec![Series::new("", vec![(0.0, 0.0), (1.0, 1.0)])],
                ..Panel::default()
            }],
        };
        let ink = |figure: &Figure| {
            let png = figure.to_png(1.0).unwrap();
            assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
            let pixels = resvg::tiny_skia::Pixmap::decode_png(&png).unwrap();
            let dark = |pixel: &&resvg::tiny_skia::PremultipliedColorU8| pixel.red() < 100;
            pixels.pixels().iter().filter(dark).count()
        };
        let (without, with) = (ink(&figure(" ")), ink(&figure("Utility at ε = 10⁻³")));
        assert!(without > 100, "{without}");
        assert!(with > without + 300, "{with} against {without}");
        assert_eq!(
            figure("same").to_png(2.0).unwrap(),
            figure("same").to_png(2.0).unwrap()
        );
    }
}
