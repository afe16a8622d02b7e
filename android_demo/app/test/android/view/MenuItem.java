package android.view;

public interface MenuItem {
    int SHOW_AS_ACTION_IF_ROOM = 1;

    int getItemId();

    boolean isChecked();

    MenuItem setChecked(boolean checked);

    MenuItem setCheckable(boolean checkable);

    void setShowAsAction(int when);
}
