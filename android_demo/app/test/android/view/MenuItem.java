package android.view;

public interface MenuItem {
    int getItemId();
    boolean isChecked();
    MenuItem setChecked(boolean checked);
    MenuItem setCheckable(boolean checkable);
    void setShowAsAction(int when);
}
