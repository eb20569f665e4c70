//! IDX arrays, the format of MNIST: two zero bytes, the element type, the number of dimensions,
//! each dimension as a big-endian `u32`, then the elements, big-endian.
//!
//! The first dimension counts the rows. Unsigned bytes are pixels and are divided by 255; elements
//! of other types are taken as they are. Images are stored sparse when fewer than half of their
//! values are nonzero. Memory grows with the bytes that are there, not with the sizes that a header
//! states.

use std::io::Read;
use std::path::Path;

use super::labels::{Labels, Schema};
use super::reader::{Input, quote};
use super::{
    DataError, Dataset, DenseRows, Features, MOST_FEATURES, Place, RecordsError, SparseRows,
};

/// Reads a file of images and the file of their labels, plain or gzip.
pub fn read(images: &Path, labels: &Path, schema: &Schema) -> Result<Dataset, DataError> {
    assemble(Input::open(images)?, Input::open(labels)?, schema)
}

/// Reads images and labels from anything that gives bytes; the names stand in error messages.
pub fn read_from(
    images: (impl Read, &Path),
    labels: (impl Read, &Path),
    schema: &Schema,
) -> Result<Dataset, DataError> {
    assemble(
        Input::new(images.1, images.0)?,
        Input::new(labels.1, labels.0)?,
        schema,
    )
}

fn assemble(
    mut images: Input<'_>,
    mut labels: Input<'_>,
    schema: &Schema,
) -> Result<Dataset, DataError> {
    // The labels are small: if they are wrong, that is known before the images are read.
    let classes = Array::read(&mut labels)?;
    let pixels = Array::read(&mut images)?;
    if classes.columns != 1 {
        let (expected, found) = (
            "one label per row".to_owned(),
            format!("{} values per row", classes.columns),
        );
        return Err(DataError::Format {
            place: Place::file(labels.path()),
            expected,
            found,
        });
    }
    if classes.rows != pixels.rows {
        let expected = format!(
            "{} labels, one for each row of {}",
            pixels.rows,
            images.path().display()
        );
        let found = classes.rows.to_string();
        return Err(DataError::Format {
            place: Place::file(labels.path()),
            expected,
            found,
        });
    }
    if let Some(columns) = schema.columns.filter(|&columns| columns != pixels.columns) {
        let expected = format!("{columns} values per row, as in training");
        let found = pixels.columns.to_string();
        return Err(DataError::Format {
            place: Place::file(images.path()),
            expected,
            found,
        });
    }
    let mut collected = Labels::new(true, schema);
    for row in 0..classes.rows {
        let text = classes.first(row).to_string();
        collected
            .push(text.as_bytes())
            .map_err(|refused| DataError::Format {
                place: Place::file(labels.path()),
                expected: refused.expected,
                found: format!("{} in row {row}", quote(text.as_bytes())),
            })?;
    }
    let labels = collected.finish(labels.path())?;
    Ok(Dataset::labelled(pixels.features(images.path())?, labels)?)
}

/// The element types of the format.
#[derive(Clone, Copy, PartialEq)]
enum Element {
    U8,
    I8,
    I16,
    I32,
    F32,
    F64,
}

impl Element {
    fn from_code(code: u8) -> Option<Element> {
        Some(match code {
            0x08 => Element::U8,
            0x09 => Element::I8,
            0x0b => Element::I16,
            0x0c => Element::I32,
            0x0d => Element::F32,
            0x0e => Element::F64,
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            Element::U8 | Element::I8 => 1,
            Element::I16 => 2,
            Element::I32 | Element::F32 => 4,
            Element::F64 => 8,
        }
    }

    /// One element; every one of these types fits into `f64`.
    fn value(self, bytes: &[u8]) -> f64 {
        match (self, bytes) {
            (Element::I8, &[a]) => f64::from(a as i8),
            (Element::I16, &[a, b]) => f64::from(i16::from_be_bytes([a, b])),
            (Element::I32, &[a, b, c, d]) => f64::from(i32::from_be_bytes([a, b, c, d])),
            (Element::F32, &[a, b, c, d]) => f64::from(f32::from_be_bytes([a, b, c, d])),
            (Element::F64, &[a, b, c, d, e, f, g, h]) => {
                f64::from_be_bytes([a, b, c, d, e, f, g, h])
            }
            (_, bytes) => f64::from(bytes[0]),
        }
    }
}

/// An array as it is in the file: its elements still bytes, so that pixels take one byte each until
/// it is known whether they are kept dense or sparse.
struct Array {
    element: Element,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

impl Array {
    fn read(input: &mut Input<'_>) -> Result<Array, DataError> {
        let (element, dimensions) = read_header(input)?;
        let wrong = |input: &Input<'_>, expected: String, found: String| DataError::Format {
            place: Place::file(input.path()),
            expected,
            found,
        };
        let shape = dimensions
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(" x ");
        let rows = dimensions[0] as usize;
        if rows == 0 {
            return Err(DataError::Empty {
                place: Place::file(input.path()),
            });
        }
        let columns = dimensions[1..].iter().try_fold(1u64, |product, &size| {
            product
                .checked_mul(u64::from(size))
                .filter(|&product| product <= u64::from(MOST_FEATURES))
        });
        let Some(columns) = columns.filter(|&columns| columns > 0) else {
            let expected = format!("rows of 1 to {MOST_FEATURES} values");
            return Err(wrong(input, expected, format!("the dimensions {shape}")));
        };
        // At most 2^32 rows of 2^27 values of 8 bytes: the product fits into 64 bits.
        let length = rows as u64 * columns * element.size() as u64;
        let bytes = input.read_up_to(length)?;
        if bytes.len() as u64 != length {
            let expected = format!("{length} bytes of values for the dimensions {shape}");
            return Err(wrong(input, expected, bytes.len().to_string()));
        }
        if !input.read_up_to(1)?.is_empty() {
            let expected =
                format!("the end after {length} bytes of values for the dimensions {shape}");
            return Err(wrong(input, expected, "more bytes".to_owned()));
        }
        Ok(Array {
            element,
            rows,
            columns: columns as usize,
            bytes,
        })
    }

    /// The first element of a row, as it is.
    fn first(&self, row: usize) -> f64 {
        let size = self.element.size();
        self.element
            .value(&self.bytes[row * self.columns * size..][..size])
    }

    /// A row as features: pixels run from 0 to 1.
    fn decode(&self, row: usize, values: &mut Vec<f32>) {
        let size = self.element.size();
        let length = self.columns * size;
        let bytes = &self.bytes[row * length..][..length];
        match self.element {
            Element::U8 => values.extend(bytes.iter().map(|&pixel| f32::from(pixel) / 255.0)),
            other => values.extend(
                bytes
                    .chunks_exact(size)
                    .map(|bytes| other.value(bytes) as f32),
            ),
        }
    }

    fn features(&self, path: &Path) -> Result<Features, DataError> {
        let mut scratch = Vec::with_capacity(self.columns);
        let mut nonzero = 0;
        for row in 0..self.rows {
            scratch.clear();
            self.decode(row, &mut scratch);
            nonzero += scratch.iter().filter(|&&value| value != 0.0).count();
        }
        let all = self.rows * self.columns;
        let features = if nonzero < all - nonzero {
            self.sparse(nonzero).map(Features::Sparse)
        } else {
            let mut values = Vec::with_capacity(all);
            (0..self.rows).for_each(|row| self.decode(row, &mut values));
            DenseRows::new(self.columns, values).map(Features::Dense)
        };
        features.map_err(|error| match error {
            RecordsError::NotFinite { row, column, value } => DataError::Format {
                place: Place::file(path),
                expected: "finite values".to_owned(),
                found: format!("{value} as value {column} of row {row}"),
            },
            other => other.into(),
        })
    }

    fn sparse(&self, nonzero: usize) -> Result<SparseRows, RecordsError> {
        let mut starts = Vec::with_capacity(self.rows + 1);
        let (mut indices, mut values) = (Vec::with_capacity(nonzero), Vec::with_capacity(nonzero));
        starts.push(0);
        let mut scratch = Vec::with_capacity(self.columns);
        for row in 0..self.rows {
            scratch.clear();
            self.decode(row, &mut scratch);
            for (column, &value) in scratch
                .iter()
                .enumerate()
                .filter(|(_, value)| **value != 0.0)
            {
                indices.push(column as u32);
                values.push(value);
            }
            starts.push(values.len());
        }
        let rows = SparseRows::new(self.columns, starts, indices, values)?;
        match self.element {
            Element::U8 => rows.with_unit(1.0 / 255.0),
            _ => Ok(rows),
        }
    }
}

/// The element type and the dimensions, of which there is at least one.
fn read_header(input: &mut Input<'_>) -> Result<(Element, Vec<u32>), DataError> {
    let wrong = |input: &Input<'_>, expected: &str, found: String| DataError::Format {
        place: Place::file(input.path()),
        expected: expected.to_owned(),
        found,
    };
    let mut magic = [0; 4];
    if !input.read_whole(&mut magic)? {
        return Err(wrong(
            input,
            "an IDX header",
            "the end of the file".to_owned(),
        ));
    }
    let [0, 0, code, count] = magic else {
        return Err(wrong(
            input,
            "an IDX header (two zero bytes first)",
            format!("bytes {magic:02x?}"),
        ));
    };
    let Some(element) = Element::from_code(code) else {
        let expected = "an IDX element type (08, 09, 0b, 0c, 0d or 0e)";
        return Err(wrong(input, expected, format!("{code:02x}")));
    };
    if count == 0 {
        return Err(wrong(input, "at least one dimension", "none".to_owned()));
    }
    let mut dimensions = Vec::new();
    for _ in 0..count {
        let mut size = [0; 4];
        if !input.read_whole(&mut size)? {
            let found = format!("the end of the file after {}", dimensions.len());
            return Err(wrong(input, &format!("{count} dimensions"), found));
        }
        dimensions.push(u32::from_be_bytes(size));
    }
    Ok((element, dimensions))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(code: u8, dimensions: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, code, dimensions.len() as u8];
        dimensions
            .iter()
            .for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend_from_slice(data);
        bytes
    }

    fn read_bytes(images: &[u8], labels: &[u8]) -> Result<Dataset, DataError> {
        read_from(
            (images, Path::new("images")),
            (labels, Path::new("labels")),
            &Schema::default(),
        )
    }

    #[test]
    fn pixels_are_scaled_and_stored_by_density() {
        let labels = array(8, &[2], &[7, 3]);
        let sparse =
            read_bytes(&array(8, &[2, 2, 2], &[0, 255, 0, 0, 51, 0, 0, 1]), &labels).unwrap();
        assert!(matches!(sparse.features(), Features::Sparse(_)));
        assert_eq!((sparse.rows(), sparse.columns()), (2, 4));
        assert_eq!(sparse.labels(), [1, 0]);
        assert_eq!(sparse.label_names(), ["3", "7"]);
        assert_eq!(
            sparse.full_row(1),
            [0.2f32, 0.0, 0.0, 1.0 / 255.0].map(f64::from)
        );
        let Features::Sparse(rows) = sparse.features() else {
            unreachable!("matched above")
        };
        assert_eq!(rows.unit(), Some(1.0 / 255.0));
        // Exactly half of the values nonzero: dense.
        let dense = read_bytes(&array(8, &[2, 2], &[0, 255, 255, 0]), &labels).unwrap();
        assert!(matches!(dense.features(), Features::Dense(_)));
        assert_eq!(dense.full_row(0), [0.0, 1.0]);
    }

    #[test]
    fn every_element_type_is_read() {
        let cases: [(u8, Vec<u8>); 5] = [
            (0x09, vec![0xfe, 3]),
            (
                0x0b,
                [-2i16, 3]
                    .iter()
                    .flat_map(|value| value.to_be_bytes())
                    .collect(),
            ),
            (
                0x0c,
                [-2i32, 3]
                    .iter()
                    .flat_map(|value| value.to_be_bytes())
                    .collect(),
            ),
            (
                0x0d,
                [-2f32, 3.0]
                    .iter()
                    .flat_map(|value| value.to_be_bytes())
                    .collect(),
            ),
            (
                0x0e,
                [-2f64, 3.0]
                    .iter()
                    .flat_map(|value| value.to_be_bytes())
                    .collect(),
            ),
        ];
        for (code, data) in cases {
            let read = read_bytes(
                &array(code, &[1, 2], &data),
                &array(code, &[1], &data[data.len() / 2..]),
            );
            let read = read.unwrap_or_else(|error| panic!("{code:02x}: {error}"));
            assert_eq!(read.full_row(0), [-2.0, 3.0], "{code:02x}");
            assert_eq!(read.label_names(), ["3"]);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let labels = array(8, &[1], &[0]);
        let expect = |images: &[u8], message: &str| {
            assert_eq!(
                read_bytes(images, &labels).unwrap_err().to_string(),
                message
            );
        };
        expect(
            &[],
            "images: expected an IDX header, found the end of the file",
        );
        expect(
            b"text",
            "images: expected an IDX header (two zero bytes first), found bytes [74, 65, 78, 74]",
        );
        expect(
            &[0, 0, 7, 1],
            "images: expected an IDX element type (08, 09, 0b, 0c, 0d or 0e), found 07",
        );
        expect(
            &[0, 0, 8, 0],
            "images: expected at least one dimension, found none",
        );
        expect(
            &[0, 0, 8, 2, 0, 0, 0, 1],
            "images: expected 2 dimensions, found the end of the file after 1",
        );
        expect(
            &array(8, &[0, 2], &[]),
            "images: expected at least one row, found none",
        );
        expect(
            &array(8, &[1, 0], &[]),
            "images: expected rows of 1 to 134217728 values, found the dimensions 1 x 0",
        );
        expect(
            &array(8, &[1, 2], &[1]),
            "images: expected 2 bytes of values for the dimensions 1 x 2, found 1",
        );
        expect(
            &array(8, &[1, 2], &[1, 2, 3]),
            "images: expected the end after 2 bytes of values for the dimensions 1 x 2, found more bytes",
        );
        expect(
            &array(8, &[2, 1], &[1, 2]),
            "labels: expected 2 labels, one for each row of images, found 1",
        );
        expect(
            &array(0x0d, &[1, 1], &f32::NAN.to_be_bytes()),
            "images: expected finite values, found NaN as value 0 of row 0",
        );
        expect(
            &array(0x0e, &[1, 1], &1e300f64.to_be_bytes()),
            "images: expected finite values, found inf as value 0 of row 0",
        );
    }

    #[test]
    fn claims_of_a_header_cost_nothing() {
        let labels = array(8, &[1], &[0]);
        for dimensions in [
            &[u32::MAX, 28, 28][..],
            &[u32::MAX, u32::MAX, u32::MAX],
            &[u32::MAX, 1 << 27],
        ] {
            assert!(read_bytes(&array(0x0e, dimensions, &[0; 100]), &labels).is_err());
        }
        assert!(read_bytes(&array(8, &[1; 255], &[9]), &labels).is_ok());
    }
}
