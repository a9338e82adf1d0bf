//! Images of given batches: a tensor `pixel_values` of f32 beside the tokens, `[steps, B, colours, side, side]` or with several images of a row
//! before the colours. They are handed out as the patches that a tower reads, and each row must have as many image tokens as its images have features.

use crate::atomic::read_at;
use crate::error::{DataError, Result};
use crate::spec::Images;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::fs::File;
use std::path::Path;

/// Name of the tensor, as in `transformers`.
const KEY: &str = "pixel_values";

/// The place of the images of a file.
#[derive(Debug)]
pub(crate) struct Pixels {
    /// First byte.
    data: u64,
    /// Images of a row.
    row: u64,
    images: Images,
}

/// Patches of images `[n, colours, side, side]`, each `[colours, patch, patch]`, row by row of an image.
///
/// Values that are no whole number of images give the patches of those that are whole.
pub fn patches(values: &[f32], [colours, side, patch]: [u64; 3]) -> Vec<f32> {
    let [c, s, p] = [colours, side, patch].map(|n| n as usize);
    let mut out = Vec::with_capacity(values.len());
    let across = s.checked_div(p).unwrap_or(0);
    for image in values.chunks_exact((c * s * s).max(1)) {
        for (y, x) in (0..across).flat_map(|y| (0..across).map(move |x| (y, x))) {
            for line in (0..c).flat_map(|c| (0..p).map(move |l| (c * s + y * p + l) * s)) {
                out.extend_from_slice(&image[line + x * p..line + (x + 1) * p]);
            }
        }
    }
    out
}

impl Pixels {
    /// Finds them in a file of `steps` batches.
    pub(crate) fn find(
        path: &Path,
        header: &Metadata,
        data: u64,
        [steps, batch]: [usize; 2],
        images: Images,
    ) -> Result<Pixels> {
        let [colours, side, _] = images.size.map(|n| n as usize);
        let refuse = |what: String| {
            let fix = format!(
                "write what the model's image processor gives as f32 [{steps}, {batch}, {colours}, {side}, {side}], or \
                 [{steps}, {batch}, images, {colours}, {side}, {side}] where a row has several"
            );
            Err(DataError::setting("data.tokens", what, fix))
        };
        let Some(info) = header.info(KEY) else {
            let what = format!(
                "{} has no tensor \"{KEY}\", and this model reads images",
                path.display()
            );
            return refuse(what);
        };
        let row = match info.shape[..] {
            [s, b, c, h, w] if [s, b, c, h, w] == [steps, batch, colours, side, side] => 1,
            [s, b, n, c, h, w] if [s, b, c, h, w] == [steps, batch, colours, side, side] => n,
            _ => 0,
        };
        if row == 0 || info.dtype != Dtype::F32 {
            let what = format!(
                "tensor \"{KEY}\" of {} is {:?} {:?}",
                path.display(),
                info.dtype,
                info.shape
            );
            return refuse(what);
        }
        Ok(Pixels {
            data: data + info.data_offsets.0 as u64,
            row: row as u64,
            images,
        })
    }

    /// Images of a row.
    pub(crate) fn of_a_row(&self) -> u64 {
        self.row
    }

    /// Appends the patches of a row's images.
    pub(crate) fn read(
        &self,
        file: &File,
        path: &Path,
        sequence: u64,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let [colours, side, _] = self.images.size;
        let mut bytes = vec![0; (4 * self.row * colours * side * side) as usize];
        let at = self.data + sequence * bytes.len() as u64;
        read_at(file, path, at, &mut bytes)?;
        let words = bytes.as_chunks::<4>().0.iter();
        let values: Vec<f32> = words.map(|b| f32::from_le_bytes(*b)).collect();
        out.extend(patches(&values, self.images.size));
        Ok(())
    }

    /// Holds the tokens of a row against its images; `place` names the row.
    pub(crate) fn check(&self, path: &Path, place: &str, row: &[u32]) -> Result<()> {
        let Images {
            token, features, ..
        } = self.images;
        let found = row.iter().filter(|t| **t == token).count() as u64;
        let wanted = self.row * features;
        let what = match row.last() {
            _ if found != wanted => format!(
                "{place} of {} has {found} image tokens ({token}), and its {} images have {wanted} features",
                path.display(),
                self.row
            ),
            Some(last) if *last == token => format!(
                "{place} of {} ends in an image token ({token}), behind which nothing is predicted",
                path.display()
            ),
            _ => return Ok(()),
        };
        let fix =
            format!("write the token {features} times for each image, with text behind the last");
        Err(DataError::setting("data.tokens", what, fix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_lie_as_a_convolution_reads_them() {
        // Two colours of 4 x 4 pixels, patches of 2 x 2.
        let image: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let found = patches(&image, [2, 4, 2]);
        assert_eq!(found[..8], [0.0, 1.0, 4.0, 5.0, 16.0, 17.0, 20.0, 21.0]);
        assert_eq!(found[8..16], [2.0, 3.0, 6.0, 7.0, 18.0, 19.0, 22.0, 23.0]);
        assert_eq!(
            found[24..],
            [10.0, 11.0, 14.0, 15.0, 26.0, 27.0, 30.0, 31.0]
        );
        let two = [image.clone(), image].concat();
        assert_eq!(patches(&two, [2, 4, 2]), [found.clone(), found].concat());
    }
}
