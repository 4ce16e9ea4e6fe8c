//! Whether a device has the dtypes of a policy.

use burn::tensor::backend::Backend;

use super::definition::Policy;
use super::dtype;
use crate::error::Fp8Error;

impl Policy {
    /// Whether the device has the three dtypes: what a cast panics about is an error here, before the run.
    ///
    /// ```
    /// use burn::backend::Flex;
    /// use burn_fp8::policy::Policy;
    ///
    /// let error = Policy::parse("p=f32,c=flex32")?.check::<Flex>(&Default::default()).unwrap_err();
    /// assert_eq!(error.to_string(), "policy: backend `flex` has no flex32; a policy for it can have f32, bf16, f16, f64");
    /// # Ok::<(), burn_fp8::Fp8Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`], which names the first one missing, and those that the device has.
    pub fn check<B: Backend>(&self, device: &B::Device) -> Result<(), Fp8Error> {
        let mut dtypes = [self.param, self.compute, self.output].into_iter();
        dtypes.try_for_each(|dtype| dtype::check::<B>(dtype, device))
    }
}
