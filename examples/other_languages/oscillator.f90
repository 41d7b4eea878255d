! A network learns the force on an oscillator while the simulation runs, and then takes the place of that force.
program oscillator
  use vernier
  implicit none
  integer, parameter :: rows = 512
  real(8), target :: states(rows, 2), forces(rows) ! position and speed, and the force there
  real(8) :: state(2) = [1.5d0, 0d0], copy(1, 2), predicted(1), furthest = 0
  type(vernier_trainer) :: trainer
  character(200) :: file
  integer :: i, trained = 1

  do i = 1, rows
    states(i, :) = state
    forces(i) = force(state)
    call move(state, forces(i))
  end do

  file = "oscillator.toml"
  if (command_argument_count() > 0) call get_command_argument(1, file)
  call must(vernier_open(trainer, trim(file)))
  call must(vernier_give(trainer, "states.npy", states))
  call must(vernier_give(trainer, "forces.npy", forces))
  do while (trained == 1)
    call must(vernier_step(trainer, trained))
    call move(state, force(state)) ! the simulation goes on
  end do

  copy(1, :) = state
  do i = 1, 100
    call must(vernier_predict(trainer, copy, predicted))
    call move(copy(1, :), predicted(1))
    call move(state, force(state))
    furthest = max(furthest, abs(copy(1, 1) - state(1)))
  end do
  print "(a, f5.3, a)", "the network's oscillator is at most ", furthest, " from the other one"
  call must(vernier_close(trainer))
  if (furthest >= 0.2) error stop

contains

  real(8) function force(state)
    real(8), intent(in) :: state(2)
    force = -state(1) - state(1) * state(1) * state(1) - 0.05d0 * state(2)
  end function

  subroutine move(state, by)
    real(8), intent(inout) :: state(2)
    real(8), intent(in) :: by
    state(2) = state(2) + 0.05d0 * by
    state(1) = state(1) + 0.05d0 * state(2)
  end subroutine

  subroutine must(status)
    integer, intent(in) :: status
    if (status /= 0) error stop vernier_error()
  end subroutine
end program
