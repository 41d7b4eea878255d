! The trainer of `vernier` for programs in Fortran: <vernier.h> by iso_c_binding. Add this file to your sources and link
! vernier::fortran, or libvernier_c.so. <vernier.h> says what each function does; each returns 0, or another status and
! vernier_error() has the text.
!
!   use vernier
!   type(vernier_trainer) :: trainer
!   real(8), target :: states(1000, 3)
!   if (vernier_open(trainer, "run.toml") /= 0) print *, vernier_error()
!
! Arrays have any rank up to 7 and are contiguous; states(i, :) is sample i. One that is given has the attribute target,
! and stays where it is until vernier_close().
module vernier
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: vernier_trainer, vernier_outcome, vernier_version, vernier_error, vernier_open, vernier_set
  public :: vernier_plugin_path, vernier_quiet, vernier_writes_folder, vernier_give, vernier_ranks, vernier_meeting
  public :: vernier_resume, vernier_step, vernier_epoch, vernier_train, vernier_stop, vernier_save, vernier_swap
  public :: vernier_validate, vernier_predict, vernier_column, vernier_metric, vernier_result, vernier_close

  type, bind(c) :: vernier_trainer
    type(c_ptr) :: handle = c_null_ptr
  end type

  type, bind(c) :: vernier_outcome
    integer(c_int64_t) :: steps
    real(c_double) :: loss, validation_loss, seconds
    character(kind=c_char) :: ended_by(16)
  end type

  type, bind(c) :: c_array
    type(c_ptr) :: data
    integer(c_int32_t) :: dtype, dims
    integer(c_int64_t) :: extents(8), strides(8)
  end type

  ! The array as given in the configuration: data = "states.npy".
  interface vernier_give
    module procedure give_float, give_double, give_int, give_long
  end interface
  interface vernier_predict
    module procedure predict_float, predict_double
  end interface

  ! Functions without texts and arrays are those of C.
  interface
    integer(c_int) function vernier_quiet(trainer, quiet) bind(c)
      import; type(vernier_trainer), value :: trainer; integer(c_int), value :: quiet; end function
    integer(c_int) function vernier_writes_folder(trainer, writes) bind(c)
      import; type(vernier_trainer), value :: trainer; integer(c_int), value :: writes; end function
    integer(c_int) function vernier_step(trainer, trained) bind(c)
      import; type(vernier_trainer), value :: trainer; integer(c_int) :: trained; end function
    integer(c_int) function vernier_epoch(trainer, steps) bind(c)
      import; type(vernier_trainer), value :: trainer; integer(c_int64_t) :: steps; end function
    integer(c_int) function vernier_train(trainer) bind(c)
      import; type(vernier_trainer), value :: trainer; end function
    integer(c_int) function vernier_stop(trainer) bind(c); import; type(vernier_trainer), value :: trainer; end function
    integer(c_int) function vernier_validate(trainer, loss) bind(c)
      import; type(vernier_trainer), value :: trainer; real(c_double) :: loss; end function
    integer(c_int) function vernier_result(trainer, outcome) bind(c)
      import; type(vernier_trainer), value :: trainer; type(vernier_outcome) :: outcome; end function
    integer(c_int) function vernier_close(trainer) bind(c)
      import; type(vernier_trainer), value :: trainer; end function
    type(c_ptr) function c_version() bind(c, name="vernier_version"); import; end function
    type(c_ptr) function c_error() bind(c, name="vernier_error"); import; end function
    integer(c_size_t) function c_length(text) bind(c, name="strlen"); import; type(c_ptr), value :: text; end function
    integer(c_int) function c_open(file, text, trainer) bind(c, name="vernier_open")
      import; type(c_ptr), value :: file, text; type(vernier_trainer) :: trainer; end function
    integer(c_int) function c_set(trainer, key, value) bind(c, name="vernier_set")
      import; type(vernier_trainer), value :: trainer; character(kind=c_char) :: key(*), value(*); end function
    integer(c_int) function c_plugin_path(trainer, folder) bind(c, name="vernier_plugin_path")
      import; type(vernier_trainer), value :: trainer; character(kind=c_char) :: folder(*); end function
    integer(c_int) function c_give(trainer, name, array) bind(c, name="vernier_give")
      import; type(vernier_trainer), value :: trainer; character(kind=c_char) :: name(*); type(c_array) :: array
      end function
    integer(c_int) function c_ranks(trainer, rank, ranks, local_rank, address, port) bind(c, name="vernier_ranks")
      import; type(vernier_trainer), value :: trainer; integer(c_int), value :: rank, ranks, local_rank, port
      character(kind=c_char) :: address(*); end function
    integer(c_int) function c_meeting(one_machine, address, size, port) bind(c, name="vernier_meeting")
      import; integer(c_int), value :: one_machine; character(kind=c_char) :: address(*)
      integer(c_size_t), value :: size; integer(c_int) :: port; end function
    integer(c_int) function c_resume(trainer, path, allow_inexact) bind(c, name="vernier_resume")
      import; type(vernier_trainer), value :: trainer; type(c_ptr), value :: path
      integer(c_int), value :: allow_inexact; end function
    integer(c_int) function c_save(trainer, path) bind(c, name="vernier_save")
      import; type(vernier_trainer), value :: trainer; type(c_ptr), value :: path; end function
    integer(c_int) function c_swap(trainer, toml) bind(c, name="vernier_swap")
      import; type(vernier_trainer), value :: trainer; character(kind=c_char) :: toml(*); end function
    integer(c_int) function c_predict(trainer, inputs, outputs) bind(c, name="vernier_predict")
      import; type(vernier_trainer), value :: trainer; type(c_array) :: inputs, outputs; end function
    integer(c_int) function c_column(trainer, index, name) bind(c, name="vernier_column")
      import; type(vernier_trainer), value :: trainer; integer(c_int64_t), value :: index; type(c_ptr) :: name
      end function
    integer(c_int) function c_metric(trainer, name, value) bind(c, name="vernier_metric")
      import; type(vernier_trainer), value :: trainer; character(kind=c_char) :: name(*); real(c_double) :: value
      end function
  end interface

contains

  function vernier_version() result(text)
    character(:), allocatable :: text
    text = text_at(c_version())
  end function

  function vernier_error() result(text)
    character(:), allocatable :: text
    text = text_at(c_error())
  end function

  integer function vernier_open(trainer, file, text) result(status)
    type(vernier_trainer), intent(out) :: trainer
    character(*), intent(in), optional :: file, text
    character(:), allocatable, target :: c_file, c_text
    status = c_open(pointer_to(c_file, file), pointer_to(c_text, text), trainer)
  end function

  integer function vernier_set(trainer, key, value) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in) :: key, value
    status = c_set(trainer, key // c_null_char, value // c_null_char)
  end function

  integer function vernier_plugin_path(trainer, folder) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in) :: folder
    status = c_plugin_path(trainer, folder // c_null_char)
  end function

  integer function vernier_ranks(trainer, rank, ranks, local_rank, address, port) result(status)
    type(vernier_trainer), intent(in) :: trainer
    integer, intent(in) :: rank, ranks, local_rank, port
    character(*), intent(in) :: address
    status = c_ranks(trainer, rank, ranks, local_rank, trim(address) // c_null_char, port)
  end function

  integer function vernier_meeting(one_machine, address, port) result(status)
    integer, intent(in) :: one_machine
    character(*), intent(out) :: address
    integer, intent(out) :: port
    character(kind=c_char) :: text(256)
    integer :: i
    port = 0
    address = ""
    status = c_meeting(one_machine, text, size(text, kind=c_size_t), port)
    if (status /= 0) return
    do i = 1, min(len(address), size(text))
      if (text(i) == c_null_char) exit
      address(i:i) = text(i)
    end do
  end function

  integer function vernier_resume(trainer, path, allow_inexact) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in), optional :: path
    integer, intent(in), optional :: allow_inexact
    character(:), allocatable, target :: c_path
    integer(c_int) :: allows
    allows = 0
    if (present(allow_inexact)) allows = allow_inexact
    status = c_resume(trainer, pointer_to(c_path, path), allows)
  end function

  integer function vernier_save(trainer, path) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in), optional :: path
    character(:), allocatable, target :: c_path
    status = c_save(trainer, pointer_to(c_path, path))
  end function

  integer function vernier_swap(trainer, toml) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in) :: toml
    status = c_swap(trainer, toml // c_null_char)
  end function

  ! index: from 1. The name is "" behind the last column.
  integer function vernier_column(trainer, index, name) result(status)
    type(vernier_trainer), intent(in) :: trainer
    integer, intent(in) :: index
    character(:), allocatable, intent(out) :: name
    type(c_ptr) :: text
    text = c_null_ptr
    status = c_column(trainer, int(index - 1, c_int64_t), text)
    name = text_at(text)
  end function

  integer function vernier_metric(trainer, name, value) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in) :: name
    real(c_double), intent(inout) :: value
    status = c_metric(trainer, name // c_null_char, value)
  end function

  integer function give_float(trainer, name, array) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in) :: name
    real(c_float), intent(in), target :: array(..)
    status = c_give(trainer, name // c_null_char, described(c_loc(array), 1, shape(array), is_contiguous(array)))
  end function

  integer function give_double(trainer, name, array) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in) :: name
    real(c_double), intent(in), target :: array(..)
    status = c_give(trainer, name // c_null_char, described(c_loc(array), 2, shape(array), is_contiguous(array)))
  end function

  integer function give_int(trainer, name, array) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in) :: name
    integer(c_int32_t), intent(in), target :: array(..)
    status = c_give(trainer, name // c_null_char, described(c_loc(array), 3, shape(array), is_contiguous(array)))
  end function

  integer function give_long(trainer, name, array) result(status)
    type(vernier_trainer), intent(in) :: trainer
    character(*), intent(in) :: name
    integer(c_int64_t), intent(in), target :: array(..)
    status = c_give(trainer, name // c_null_char, described(c_loc(array), 4, shape(array), is_contiguous(array)))
  end function

  integer function predict_float(trainer, inputs, outputs) result(status)
    type(vernier_trainer), intent(in) :: trainer
    real(c_float), intent(in), target :: inputs(..)
    real(c_float), intent(inout), target :: outputs(..)
    status = c_predict(trainer, described(c_loc(inputs), 1, shape(inputs), is_contiguous(inputs)), &
                       described(c_loc(outputs), 1, shape(outputs), is_contiguous(outputs)))
  end function

  integer function predict_double(trainer, inputs, outputs) result(status)
    type(vernier_trainer), intent(in) :: trainer
    real(c_double), intent(in), target :: inputs(..)
    real(c_double), intent(inout), target :: outputs(..)
    status = c_predict(trainer, described(c_loc(inputs), 2, shape(inputs), is_contiguous(inputs)), &
                       described(c_loc(outputs), 2, shape(outputs), is_contiguous(outputs)))
  end function

  ! One that is not contiguous is refused by its strides.
  pure function described(address, dtype, extents, contiguous) result(array)
    type(c_ptr), intent(in) :: address
    integer, intent(in) :: dtype, extents(:)
    logical, intent(in) :: contiguous
    type(c_array) :: array
    integer :: i
    array = c_array(address, dtype, size(extents), 0, -1)
    do i = 1, size(extents)
      array%extents(i) = extents(i)
      if (contiguous) array%strides(i) = product(int(extents(:i - 1), c_int64_t))
    end do
  end function

  ! A text of C in `kept`, or null where there is none.
  function pointer_to(kept, text) result(pointer)
    character(:), allocatable, target, intent(out) :: kept
    character(*), intent(in), optional :: text
    type(c_ptr) :: pointer
    pointer = c_null_ptr
    if (.not. present(text)) return
    kept = text // c_null_char
    pointer = c_loc(kept)
  end function

  function text_at(place) result(text)
    type(c_ptr), intent(in) :: place
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    text = ""
    if (.not. c_associated(place)) return
    call c_f_pointer(place, letters, [c_length(place)])
    do i = 1, size(letters)
      text = text // letters(i)
    end do
  end function
end module
